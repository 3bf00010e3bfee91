"""Turn a request into decisions, each with its reason; nothing here acts."""

from echelon.plan.resolve import Surroundings, resolve
from echelon.plan.site import KnownMachine

__all__ = ["KnownMachine", "Surroundings", "resolve"]
