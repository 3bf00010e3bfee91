"""What `echelon run --check` does before anything starts: look at the nodes, and stop, warn, or do without some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from echelon.cli.talk import say
from echelon.errors import UsageError
from echelon.host import Host

if TYPE_CHECKING:
    from echelon.cli.nodes import BeforeRun
    from echelon.spec import Job, Plan

LEVELS = ("fast", "full", "off")


def checked(values: Mapping[str, Sequence[str]], job: Job, plan: Plan, host: Host) -> Plan:
    """Return the plan, without bad nodes where that was asked for; raise UsageError for an error that is left."""
    level, excludes = _asked(values, plan)
    if level == "off":
        return plan
    from echelon.cli.nodes import before_run

    found = before_run(level=level, ranks_per_node=plan.ranks_per_node, exclude_bad=excludes, host=host)
    if found.is_refused and "check" in values:
        raise UsageError(
            found.line.removeprefix("error").lstrip(": "),
            hint="echelon check shows all that was found; echelon run --check off … starts anyway",
        )
    if found.left_out:
        plan = _without(job, found, host)
    if found.line:
        say(f"check: {found.line}")
    return plan


def _asked(values: Mapping[str, Sequence[str]], plan: Plan) -> tuple[str, bool]:
    """Return how the nodes are looked at, and whether bad ones are left out."""
    by_default = "fast" if plan.where == "here" and plan.devices_per_node else "off"
    level = values.get("check", [by_default])[-1]
    if level not in LEVELS:
        seen = level or "''"
        raise UsageError(f"--check {seen}: the choices are {', '.join(LEVELS)}", hint="echelon run --check fast …")
    excludes = "exclude_bad" in values
    if excludes and plan.where != "slurm":
        raise UsageError(
            "--exclude-bad leaves out nodes of an allocation, and here is one machine",
            hint="salloc --nodes=8 … echelon run --check full --exclude-bad …",
        )
    if excludes and plan.launcher is not None and plan.launcher.is_step:
        raise UsageError(
            f"--exclude-bad leaves nodes out of echelon's own step, and here {plan.launcher.name} starts the ranks",
            hint=f"echelon check --exclude-bad prints the nodes; leave them out of the line of {plan.launcher.name}",
        )
    if excludes and level == "off":
        raise UsageError(
            "--exclude-bad leaves out what a check finds, and none was asked for",
            hint="echelon run --check full --exclude-bad …",
        )
    return level, excludes


def _without(job: Job, found: BeforeRun, host: Host) -> Plan:
    """Plan anew for the nodes that are left; the step is told which are not."""
    from echelon.checks.nodelist import compress
    from echelon.launch.prepare import prepare
    from echelon.slurm import allocation

    plan = prepare(job, _Elsewhere(allocation.without(host.environ, found.left_out)))
    bad = compress(found.left_out)
    say(f"check: goes on without {bad}: {found.why_left_out}")
    return replace(plan, step=(*plan.step, f"--exclude={bad}"))


class _Elsewhere(Host):
    """This machine with another environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @property
    def environ(self) -> Mapping[str, str]:
        return self._environ
