"""What `benchmarks.peers` needs: the peers' guides as rules, the change of a script by them, and the comparison."""
