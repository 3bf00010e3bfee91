"""Format the line that shows the progress of a start."""

from __future__ import annotations

from echelon.launch.attempt import Attempt
from echelon.spec import Plan


def text(plan: Plan, attempt: Attempt, *, num_agents: tuple[int, int], is_importing: bool) -> str:
    """Return the line; `num_agents` holds the number of agents that joined, and the number expected."""
    come, wanted = num_agents
    parts = [f"{come}/{wanted} nodes up" if wanted > 1 else "starting"]
    packages = list(dict.fromkeys(name.replace(":", ".").partition(".")[0] for name in plan.preload))
    if is_importing and packages:
        parts.append("importing " + ", ".join(packages))
    if attempt.is_running:
        parts.append(f"{attempt.num_started}/{len(attempt.alive)} ranks started")
    return " · ".join(parts)
