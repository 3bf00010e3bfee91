"""The same bits on any number of ranks: each virtual shard is computed by itself, and sums follow one tree."""
