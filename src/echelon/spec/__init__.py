"""The frozen nouns that rooms exchange: what is asked for, and what was decided."""

from echelon.spec.job import ALL_NODES, ONE_PER_DEVICE, Command, Job
from echelon.spec.plan import Plan, Reason

__all__ = ["ALL_NODES", "ONE_PER_DEVICE", "Command", "Job", "Plan", "Reason"]
