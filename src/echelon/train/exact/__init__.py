"""The same bits on any number of ranks: virtual shards, each computed by itself, and sums along one tree."""
