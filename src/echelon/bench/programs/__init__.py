"""Programs that the benchmarks start as ranks; these alone import torch."""
