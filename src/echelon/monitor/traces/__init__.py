"""Traces of torch.profiler: what a step waited for, read from the files alone, without torch."""
