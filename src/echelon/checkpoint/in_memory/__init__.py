"""The newest state of a training in the memory of the nodes: each has its ranks' shares, and those of a neighbour."""
