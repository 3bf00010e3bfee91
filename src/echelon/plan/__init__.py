"""From what is asked for to what will be done, with the reason for each decision; nothing here acts."""

from echelon.plan.resolve import Surroundings, resolve
from echelon.plan.site import Site

__all__ = ["Site", "Surroundings", "resolve"]
