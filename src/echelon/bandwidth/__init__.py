"""Measure the bandwidth between ranks, the network that they really use, and which nodes are slow."""
