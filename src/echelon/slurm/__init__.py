"""Slurm's own words: what an allocation says of itself, the step that starts agents, why a job ended."""
