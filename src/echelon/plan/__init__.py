"""Turn a request into decisions, each with its reason; nothing here acts."""

from echelon.plan.resolve import Surroundings, resolve
from echelon.plan.site import Site

__all__ = ["Site", "Surroundings", "resolve"]
