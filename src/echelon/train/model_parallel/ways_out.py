"""Repairs for a model that cannot be split, as texts of errors."""

WITH_THE_BATCH = "echelon run --scale data …, or --scale fsdp"
WITH_SEEDS = (
    "draw all random numbers with torch, numpy.random or random, or with a generator that has a seed "
    "(numpy.random.default_rng(0)); or " + WITH_THE_BATCH
)
