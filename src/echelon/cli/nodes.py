"""Survey the nodes of this job and judge them: shared by `echelon check` and the start of a run."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from echelon.checks import collectives
from echelon.checks.examine import bad_nodes, examine, in_order
from echelon.checks.finding import Finding, Wanted
from echelon.cli.shared_disk import of_imports
from echelon.cli.talk import say
from echelon.errors import UsageError
from echelon.host import Host
from echelon.node.survey import take
from echelon.node.survey.nouns import Survey
from echelon.node.survey.software import search_path
from echelon.scheduler import members

if TYPE_CHECKING:
    from echelon.checks.collectives import Usual
    from echelon.checks.report import Group
    from echelon.machines.machine import Machine, NodeType
    from echelon.scheduler.protocol import Allocation
    from echelon.spec import Plan

PART_SECONDS = {"fast": 5.0, "full": 15.0}
MEASURE_SECONDS = 300.0
HERE_RANKS = 2  # without devices and without a number of ranks
GATHER_SECONDS = {"fast": 30.0, "full": 90.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQuestion:
    """What to check."""

    level: str = "full"
    """"fast": facts that are read within a second; "full": also slow tools, and whether nodes reach each other."""
    ranks_per_node: int = 0
    checkpoints: str = ""
    machine: str = ""
    measures: bool = False
    """Whether to measure the collectives."""
    reference_bytes_per_second: float = 0.0
    """The bus bandwidth that these nodes should reach; 0: unknown."""
    keeps: bool = False
    """Whether to keep the measurement as the machine's reference."""
    part_seconds: float = 0.0
    """The time limit of each part of a survey; 0: the level's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The surveys of the nodes, and the findings."""

    surveys: list[Survey]
    findings: list[Finding]
    seconds: float
    sweep: Mapping[str, Any] = field(default_factory=dict)
    """The measured sweep; empty: none."""

    @property
    def bad_nodes(self) -> list[str]:
        return bad_nodes(self.surveys, self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeRun:
    """The result of the checks for the start of a run."""

    line: str
    """The worst finding as one line; empty: none."""
    is_refused: bool
    """Whether an error remains that would make the run fail."""
    left_out: tuple[str, ...]
    """Nodes that the run must not use."""
    why_left_out: str
    """The worst finding on those nodes."""
    seconds: float


def check(question: NodeQuestion, host: Host) -> Checked:
    """Survey this machine, or all nodes of the allocation with one step, and judge the answers."""
    began = time.monotonic()
    allocation = _allocation(host)
    machine = _machine(question.machine, host, is_job=allocation is not None)
    if question.keeps and machine is None:
        raise UsageError(
            "--keep needs a known machine, but echelon does not know this machine",
            hint="on its login node: echelon machines learn   then here: echelon check --machine NAME …",
        )
    wanted = _wanted(question, machine, allocation, host)
    asked = take.SurveyRequest(
        is_full=question.level == "full",
        search_path=search_path(),
        checkpoints=os.path.abspath(question.checkpoints or os.getcwd()),
        binds=wanted.binds,
        part_seconds=question.part_seconds or PART_SECONDS[question.level],
    )
    if allocation is None:
        surveys = [take.survey(asked, host.environ)]
    else:
        surveys = _of_allocation(allocation, asked, question, host)
    findings = examine(surveys, wanted)
    if question.level == "full":
        findings = in_order([*findings, *of_imports(host)], surveys)
    result: Mapping[str, Any] = {}
    if question.measures:
        result, more = _measure(question, wanted, surveys, host)
        findings = in_order([*findings, *more], surveys)
    return Checked(surveys=surveys, findings=findings, seconds=time.monotonic() - began, sweep=result)


def _measure(
    question: NodeQuestion, wanted: Wanted, surveys: list[Survey], host: Host
) -> tuple[Mapping[str, Any], list[Finding]]:
    from echelon.trials import collective_run

    has_devices = any(survey.devices.visible for survey in surveys)
    per_node = question.ranks_per_node or (0 if has_devices else HERE_RANKS if len(surveys) == 1 else 1)
    swept = collective_run.sweep(
        ranks_per_node=per_node,
        has_devices=has_devices,
        reference_bytes_per_second=question.reference_bytes_per_second,
        timeout_seconds=MEASURE_SECONDS,
        host=host,
    )
    asked = question.reference_bytes_per_second
    usual = collectives.asked(asked) if asked else collectives.usual_of(swept.result, wanted)
    more = collectives.look(swept.result, swept.debug, surveys, wanted, usual=usual)
    if question.keeps:
        _keep(swept.result, more, wanted, host)
    return {**swept.result, "reference": asdict(usual) if usual is not None else None}, more


def layout(host: Host) -> tuple[bool, int]:
    """Say whether the nodes at hand have devices, and how many ranks a node has by default; 0: one for each device."""
    allocation = _allocation(host)
    if allocation is not None:
        return any(allocation.devices), 0 if any(allocation.devices) else 1 if len(allocation.nodes) > 1 else HERE_RANKS
    asked = take.SurveyRequest(
        is_full=False, search_path=search_path(), checkpoints=os.getcwd(), binds=(), part_seconds=PART_SECONDS["fast"]
    )
    has_devices = bool(take.survey(asked, host.environ).devices.visible)
    return has_devices, 0 if has_devices else HERE_RANKS


def reference(result: Mapping[str, Any], machine_name: str, host: Host) -> Usual | None:
    """Return the reference of the current or the named machine for a measurement; None if it has none."""
    allocation = _allocation(host)
    machine = _machine(machine_name, host, is_job=allocation is not None)
    return collectives.usual_of(result, _wanted(NodeQuestion(), machine, allocation, host))


def _keep(result: Mapping[str, Any], findings: list[Finding], wanted: Wanted, host: Host) -> None:
    """Keep the measurement as a reference, unless it has findings."""
    from echelon.machines.load import find
    from echelon.machines.write import keep

    wrong = [finding.message for finding in findings if finding.severity != "note"]
    if wanted.kind is None or wrong:
        why = (
            f"it is not good: {wrong[0]}"
            if wrong
            else f"echelon cannot tell which node type of {wanted.machine} these nodes have"
        )
        say(f"echelon keeps no reference: {why}")
        return
    row = collectives.kept(result, wanted.kind.name, datetime.fromtimestamp(host.now(), timezone.utc).date())
    path = keep(find(wanted.machine, host.environ), row, host.environ)
    say(f"kept as the reference of {wanted.machine}: {row.bus_bytes_per_second / 1e9:.2f} GB/s, in {path}")


def _allocation(host: Host) -> Allocation | None:
    """Return the allocation to survey; None outside of a job, and inside of a task of a step."""
    allocated = members.allocation_of(host)
    if allocated is None or allocated.is_task:
        return None
    if shutil.which("srun", path=host.environ.get("PATH")) is None:
        say("note: there is no srun here (this may be a container): echelon checks only this node")
        return None
    return allocated


def _of_allocation(
    allocation: Allocation, asked: take.SurveyRequest, question: NodeQuestion, host: Host
) -> list[Survey]:
    from echelon.launch import visit
    from echelon.scheduler.slurm.step import step_command, step_environment

    step = step_command(
        num_nodes=len(allocation.nodes), tasks_per_node=1, devices_per_node=min(allocation.devices, default=0)
    )
    asked_round = visit.Round(
        nodes=allocation.nodes,
        step=step,
        environ=step_environment(host.environ),
        asked=asked,
        meets=question.level == "full",
        gather_seconds=GATHER_SECONDS[question.level],
    )
    return visit.survey_nodes(asked_round, host)


def _machine(name: str, host: Host, *, is_job: bool) -> Machine | None:
    """Return the named machine, or the current one; outside of a job, do not ask a scheduler."""
    from echelon.machines import detect, load

    if name:
        return load.find(name, host.environ)
    return detect.here(host) if is_job or host.environ.get("ECHELON_MACHINE") else None


def _wanted(question: NodeQuestion, machine: Machine | None, allocation: Allocation | None, host: Host) -> Wanted:
    from echelon.lint.pages import words

    table = words()["variables"]
    nodes = allocation.nodes if allocation is not None else ()
    counts = allocation.devices if allocation is not None else ()
    plain = Wanted(
        num_nodes=max(1, len(nodes)),
        ranks_per_node=question.ranks_per_node,
        in_allocation=allocation is not None,
        devices_by_node=dict(zip(nodes, counts, strict=True)) if counts else {},
        known_variables=tuple(table["known"]),
        renamed_variables=dict(table["renamed"]),
        now=host.now(),
    )
    if machine is None:
        return plain
    kind, is_whole = _kind(machine, allocation.partition if allocation is not None else "")
    return replace(
        plain,
        machine=machine.name,
        kind=kind,
        whole_nodes=is_whole,
        network=machine.networks[0] if machine.networks else None,
        references=machine.references,
        provided=frozenset(row.name for row in machine.settings),
        binds=tuple(dict.fromkeys(bind.partition(":")[0] for row in machine.containers for bind in row.binds)),
    )


def _kind(machine: Machine, partition: str) -> tuple[NodeType | None, bool]:
    partition_row = next((row for row in machine.partitions if row.name == partition), None)
    if partition_row is not None:
        return machine.node_type(partition_row), partition_row.whole_nodes
    with_devices = [kind for kind in machine.usual_node_types if kind.num_devices]
    return (with_devices[0] if len(with_devices) == 1 else None), False


def beside_run(surveys: Sequence[Survey], plan: Plan, host: Host) -> list[Group]:
    """Judge surveys that were taken beside the ranks; return the findings above a note, worst first."""
    from echelon.checks.report import grouped

    allocation = _planned(plan, host)
    machine = _machine("", host, is_job=allocation is not None)
    wanted = _wanted(NodeQuestion(level="fast", ranks_per_node=plan.ranks_per_node), machine, allocation, host)
    findings = examine(surveys, replace(wanted, binds=()))  # the run itself makes the container's binds
    return [group for group in grouped(findings) if group.finding.severity != "note"]


def _planned(plan: Plan, host: Host) -> Allocation | None:
    """Return the allocation as the plan has it, without asking the scheduler again."""
    from echelon.scheduler.slurm import allocation

    allocated = allocation.read(host.environ, lambda _job: {}) if plan.has_allocation else None
    devices = (plan.devices_per_node,) * len(plan.nodes) if plan.devices_per_node else ()
    return replace(allocated, nodes=plan.nodes, devices=devices) if allocated is not None else None


def before_run(*, level: str, ranks_per_node: int, exclude_bad: bool, host: Host) -> BeforeRun:
    """Check the nodes before a run begins: `echelon run --check fast|full [--exclude-bad]`."""
    from echelon.checks.report import in_one_line

    checked = check(NodeQuestion(level=level, ranks_per_node=ranks_per_node), host)
    left_out = tuple(checked.bad_nodes) if exclude_bad else ()
    left = [finding for finding in checked.findings if finding.node not in left_out]
    return BeforeRun(
        line=in_one_line(left),
        is_refused=any(finding.severity == "error" for finding in left),
        left_out=left_out,
        why_left_out=next((each.message for each in checked.findings if each.node in left_out), ""),
        seconds=checked.seconds,
    )
