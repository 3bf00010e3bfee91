"""echelon takes a training script from one GPU to a whole supercomputer."""

__version__ = "0.1.0"
