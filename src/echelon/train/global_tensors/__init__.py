"""Global tensors: a training loop sees the whole batch, and each rank holds a part of it."""
