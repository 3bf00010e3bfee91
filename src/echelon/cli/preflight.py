"""Check the nodes of `echelon run` before the start, or beside the ranks; let `monitor` see the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from echelon.cli.options import CHECKS
from echelon.cli.talk import say
from echelon.errors import UsageError
from echelon.host import Host
from echelon.orders.rehearsal import VARIABLE as VARIABLE_OF_REHEARSALS

if TYPE_CHECKING:
    from echelon.cli.nodes import BeforeRun
    from echelon.launch.lookouts import Look, NodeFinding, Observer
    from echelon.monitor.device_facts import Fact
    from echelon.monitor.facts import SampleFacts
    from echelon.node.survey.nouns import Survey
    from echelon.spec import Job, Plan


VARIABLE = "ECHELON_CHECK"  # the variable that sets the level when the command line does not
PART_SECONDS = 15.0  # the limit of each part of a survey beside the ranks, where nobody waits for it


def checked(values: Mapping[str, Sequence[str]], job: Job, plan: Plan, host: Host) -> Plan:
    """Return the plan, without bad nodes if --exclude-bad is given; raise UsageError if an error remains."""
    level, excludes = _asked(values, plan, host)
    if level in ("off", ""):
        return plan
    from echelon.cli.nodes import before_run

    before = before_run(level=level, ranks_per_node=plan.ranks_per_node, exclude_bad=excludes, host=host)
    if before.is_refused:
        raise UsageError(
            before.line.removeprefix("error").lstrip(": "),
            hint="echelon check shows all findings; echelon run --check off … starts anyway",
        )
    if before.left_out:
        plan = _without(job, before, host)
    if before.line:
        say(f"check: {before.line}")
    return plan


def look(values: Mapping[str, Sequence[str]], plan: Plan, host: Host) -> Look | None:
    """Return the survey to take beside the ranks; None if --check is off, or if nothing is worth a look.

    After a check before the start, the survey is not judged again: then it only says what to sample. A single machine
    without devices is not surveyed: nobody allocates it, and nobody pays for it.
    """
    is_worth = plan.has_allocation or (plan.where == "here" and plan.devices_per_node > 0)
    is_by_node = plan.launch != "tasks" and not (plan.launcher is not None and plan.launcher.is_step)
    level = _level(values, host)
    if level == "off" or not (is_worth and is_by_node):
        return None
    from echelon.launch.lookouts import Look
    from echelon.node.survey.software import search_path

    asked = {"search_path": search_path(), "checkpoints": os.getcwd(), "part_seconds": PART_SECONDS}
    return Look(asked={**asked, "is_told": not level}, judge=partial(_judge, plan, host))


def _judge(plan: Plan, host: Host, surveys: Sequence[Survey]) -> list[NodeFinding]:
    from echelon.checks.report import fields, line
    from echelon.cli.nodes import beside_run
    from echelon.launch.lookouts import NodeFinding

    return [NodeFinding(line=line(group), fields=fields(group)) for group in beside_run(surveys, plan, host)]


def _level(values: Mapping[str, Sequence[str]], host: Host) -> str:
    """Return the level that the options or the environment set; empty: none."""
    levels = values.get("check", [])
    level = levels[-1] if levels else host.environ.get(VARIABLE, "")
    if level not in CHECKS and (level or levels):
        name = "--check " if levels else f"{VARIABLE}="
        raise UsageError(
            f"{name}{level or repr('')}: the choices are {', '.join(CHECKS)}", hint="echelon run --check fast …"
        )
    return level


def _asked(values: Mapping[str, Sequence[str]], plan: Plan, host: Host) -> tuple[str, bool]:
    level = _level(values, host)
    excludes = "exclude_bad" in values
    if excludes and not plan.has_allocation:
        raise UsageError(
            "--exclude-bad leaves out nodes of an allocation, but this is a single machine",
            hint="salloc --nodes=8 … echelon run --check full --exclude-bad …",
        )
    if excludes and plan.launcher is not None and plan.launcher.is_step:
        raise UsageError(
            f"--exclude-bad leaves nodes out of echelon's own step, but here {plan.launcher.name} starts the ranks",
            hint=f"echelon check --exclude-bad prints the nodes; leave them out of the line of {plan.launcher.name}",
        )
    if excludes and level in ("off", ""):
        raise UsageError(
            "--exclude-bad leaves out nodes that fail a check, but no check comes before this run",
            hint="echelon run --check full --exclude-bad …",
        )
    if plan.where == "ssh" and level not in ("off", ""):
        raise UsageError(
            f"a check ({level}) before the start is for this machine or the nodes of an allocation, not for --hosts",
            hint="echelon run --check off …   and echelon check on each host",
        )
    return level, excludes


def _without(job: Job, before: BeforeRun, host: Host) -> Plan:
    """Plan again for the nodes that remain; the step excludes the others."""
    from echelon.environment.hostlist import compress
    from echelon.launch.prepare import prepare
    from echelon.scheduler.slurm import allocation

    plan = prepare(job, _Elsewhere(allocation.without(host.environ, before.left_out)))
    bad = compress(before.left_out)
    say(f"check: continues without {bad}: {before.why_left_out}")
    return replace(plan, step=(*plan.step, f"--exclude={bad}"))


class _Elsewhere(Host):
    """This machine, with another environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    @property
    def environ(self) -> Mapping[str, str]:
        return self._environ


def observer(is_unshared: Callable[[], bool], plan: Plan | None = None) -> Observer:
    """Return the functions that a supervisor calls; they import what they need when there is something to judge.

    `is_unshared` says whether the script is one for a single device that is not scaled.
    """
    from echelon.launch.lookouts import Observer

    judge = _Judge(is_unshared, plan)
    return Observer(judge=judge.look, rest=judge.rest, sum_up=judge.sum_up)


class _Judge:
    """The facts of a run."""

    def __init__(self, is_unshared: Callable[[], bool], plan: Plan | None) -> None:
        self._plan = plan
        self._is_unshared = is_unshared
        self._facts: SampleFacts | None = None
        self._has_steps = False

    def look(self, line: dict[str, Any]) -> NodeFinding | None:
        """Take a line of samples.jsonl; return what is to be said now."""
        self._has_steps = self._has_steps or bool(line.get("steps"))
        if not {"measures", "loss", "load", "host", "notes"} & line.keys():
            return None
        if self._facts is None:
            from echelon.monitor.facts import SampleFacts

            self._facts = SampleFacts(self._is_unshared, self._name())
        fact = self._facts.look(line)
        return _seen(fact) if fact is not None else None

    def _name(self) -> str:
        """Return the name of the run, if its steps can be run again."""
        from echelon.launch import run_directory, runs
        from echelon.monitor import bad_steps

        if (
            self._plan is None
            or VARIABLE_OF_REHEARSALS in dict(self._plan.environ)
            or bad_steps.why_not(run_directory.plan_fields(self._plan))
        ):
            return ""
        return runs.short_name(self._plan.run_directory)

    def sum_up(self, path: str) -> str:
        """Return the numbers of the run's last line; a run without a step reads nothing for it."""
        if not self._has_steps:
            return ""
        from echelon.monitor import account, recorded, report

        try:
            return report.summary_of_run(account.of_run(recorded.read(path)))
        except UsageError:
            return ""  # the disk is full: what the run said itself still counts

    def rest(self) -> list[NodeFinding]:
        return [_seen(fact) for fact in self._facts.rest()] if self._facts is not None else []


def _seen(fact: Fact) -> NodeFinding:
    from echelon.launch.lookouts import NodeFinding

    return NodeFinding(line=fact.line, fields={"fact": fact.kind, "line": fact.line, **fact.evidence})
