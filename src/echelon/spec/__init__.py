"""The frozen nouns that rooms exchange: requests and decisions."""

from echelon.spec.booking import Booking, Variable
from echelon.spec.container import Container
from echelon.spec.job import ALL_NODES, ONE_PER_DEVICE, Command, Job
from echelon.spec.launcher import Launcher
from echelon.spec.plan import RUNS, Plan
from echelon.spec.reason import Reason
from echelon.spec.request import Request

__all__ = [
    "ALL_NODES",
    "ONE_PER_DEVICE",
    "RUNS",
    "Booking",
    "Command",
    "Container",
    "Job",
    "Launcher",
    "Plan",
    "Reason",
    "Request",
    "Variable",
]
