"""The frozen nouns that rooms exchange: requests and decisions."""

from echelon.spec.booking import Booking, Reason, Variable
from echelon.spec.job import ALL_NODES, ONE_PER_DEVICE, Command, Job, Launcher, Request
from echelon.spec.plan import RUNS, Container, Plan
from echelon.spec.staged import Staged, StageRequest
from echelon.spec.tracker import LIBRARIES, Tracker

__all__ = [
    "ALL_NODES", "LIBRARIES", "ONE_PER_DEVICE", "RUNS", "Booking", "Command", "Container", "Job", "Launcher", "Plan",
    "Reason", "Request", "StageRequest", "Staged", "Tracker", "Variable",
]  # fmt: skip
