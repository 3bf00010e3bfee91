"""How ranks share a training: one class, in a file of its own, for each parallelism."""
