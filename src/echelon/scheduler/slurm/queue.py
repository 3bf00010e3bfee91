"""Ask Slurm's controller for the state of a job."""

from __future__ import annotations

import re
from dataclasses import dataclass

from echelon.environment import hostlist
from echelon.errors import EchelonError, UsageError
from echelon.host import Host

ASK_SECONDS = 20.0
_OVER = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
     "REVOKED", "SPECIAL_EXIT"}
)  # fmt: skip
_ENDS = {
    "COMPLETED": "ended well",
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node",
    "PREEMPTED": "was preempted by another job",
    "BOOT_FAIL": "failed: its nodes did not boot",
    "DEADLINE": "reached its deadline",
    "OUT_OF_MEMORY": "used more memory than it asked for",
}
# Slurm's reasons why a job waits: squeue(1), job reason codes
_REASONS = {
    "Priority": "jobs of higher priority come first",
    "Resources": "it waits for nodes to become free",
    "Dependency": "it waits for another job to end",
    "DependencyNeverSatisfied": "it waits for a job that failed, so it never starts",
    "BeginTime": "its start time (--begin) is in the future",
    "JobHeldUser": "it is held: scontrol release NUMBER",
    "JobHeldAdmin": "an administrator holds it",
    "JobArrayTaskLimit": "the maximum number of jobs of its array already run",
    "Licenses": "it waits for a licence",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives",
    "PartitionTimeLimit": "it asks for more time than the partition gives",
    "ReqNodeNotAvail": "nodes that it needs are down, or kept for maintenance",
    "Reservation": "it waits for its reservation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job's state in Slurm's word, and its exit code as in a shell."""

    name: str
    exit_code: int
    reason: str = ""
    """Slurm's reason for waiting; empty: the job does not wait."""
    starts: str = ""
    """The start that Slurm expects, as 2026-11-21T05:37:12; empty: not stated."""
    nodes: str = ""

    @property
    def is_over(self) -> bool:
        return self.name in _OVER

    @property
    def can_never_start(self) -> bool:
        return self.reason == "DependencyNeverSatisfied"

    @property
    def is_waiting(self) -> bool:
        return self.name == "PENDING"

    def place(self, number: str) -> str:
        """Describe the job's place in one line: waiting, with the reason and the expected start; or its nodes."""
        if not self.is_waiting:
            return f"job {number} started on {self.nodes}" if self.nodes else ""
        said = f"Slurm's reason is {self.reason}" if self.reason else "Slurm has not considered it yet"
        why = _REASONS.get(self.reason, said)
        when = f"; Slurm expects it to start at {self.starts.replace('T', ' ')}" if self.starts else ""
        return f"job {number} waits: {why.replace('NUMBER', number)}{when}"

    def end(self, number: str) -> str:
        return f"job {number} {_ENDS.get(self.name, f'failed with exit code {self.exit_code}')}"


class UnknownJob(EchelonError):
    """Slurm has no job of that number, or has forgotten it."""


def state(host: Host, number: str) -> JobState:
    """Return a job's state; raise UnknownJob if Slurm has forgotten it, and EchelonError if Slurm does not answer."""
    answer = host.ask(("scontrol", "show", "job", "--oneliner", number), timeout_seconds=ASK_SECONDS)
    if answer.exit_code != 0:
        if "Invalid job id" in answer.stderr:
            raise UnknownJob(f"Slurm does not know job {number}")
        raise EchelonError(answer.stderr.strip())
    return read(answer.stdout)


def refuse_bad_predecessor(host: Host, number: str) -> None:
    """Raise UsageError for a predecessor that does not exist or has failed."""
    predecessor: JobState | None
    try:
        predecessor = state(host, number)
    except UnknownJob:
        predecessor = _from_accounting(host, number)
    if predecessor is None:
        raise UsageError(f"--after {number}: Slurm knows no job {number}", hint="squeue --me lists your jobs")
    if predecessor.is_over and predecessor.name != "COMPLETED":
        raise UsageError(
            f"--after {number}: {predecessor.end(number)}, so a job after it would never start",
            hint="remove --after, or submit that job again first",
        )


def _from_accounting(host: Host, number: str) -> JobState | None:
    """Look up a job in Slurm's accounting after the controller has forgotten it; None if it is unknown there."""
    command = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode", f"--jobs={number}")
    try:
        answer = host.ask(command, timeout_seconds=ASK_SECONDS)
    except EchelonError:
        return None
    line = answer.stdout.strip().partition("\n")[0]  # CANCELLED by 1000|0:15
    name, _, code = line.partition("|")
    return read(f"JobState={name.split()[0]} ExitCode={code}") if answer.exit_code == 0 and name.strip() else None


def read(text: str) -> JobState:
    """Read one line of `scontrol show job`: JobState=FAILED … ExitCode=3:0, or 0:15 for a signal."""
    code = re.search(r"\bExitCode=(\d+):(\d+)", text)
    name = _field(text, "JobState") or "UNKNOWN"
    exit_code, number = (int(code.group(1)), int(code.group(2))) if code else (0, 0)
    if number:
        exit_code = 128 + number
    is_waiting = name == "PENDING"
    return JobState(
        name=name,
        exit_code=exit_code or (1 if name in _OVER - {"COMPLETED"} else 0),
        reason=_field(text, "Reason").partition(",")[0] if is_waiting else "",  # "ReqNodeNotAvail, Reserved…"
        starts=_field(text, "StartTime") if is_waiting else "",
        nodes=_field(text, "NodeList") if not is_waiting else "",
    )


def _field(text: str, name: str) -> str:
    match = re.search(rf"(?:^|\s){name}=(\S+)", text)
    return match.group(1) if match and match.group(1) not in ("(null)", "None", "Unknown", "N/A") else ""


ASK_DEVICES_SECONDS = 5.0


def ask(host: Host, job_id: str) -> dict[str, int]:
    """Return devices by node; empty if Slurm does not answer or does not tell."""
    try:
        answer = host.ask(("scontrol", "--details", "show", "job", job_id), timeout_seconds=ASK_DEVICES_SECONDS)
    except EchelonError:
        return {}
    return devices_of_nodes(answer.stdout, job_id) if answer.exit_code == 0 else {}


def devices_of_nodes(text: str, job_id: str) -> dict[str, int]:
    """Read one job's record of `scontrol --details show job`, which shows all elements of an array job.

    Nodes=nid[005000-005001] CPU_IDs=1-7,9 Mem=61440 GRES=gpu:mi250:8(IDX:0-7)
    """
    devices: dict[str, int] = {}
    records = [record for record in re.split(r"(?m)^(?=JobId=)", text) if re.match(rf"JobId={job_id}\b", record)]
    for nodes, gres in re.findall(r"\bNodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)", "".join(records)):
        count = sum(int(number) for number in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:([0-9]{1,9})\(", gres))
        for node in hostlist.expand(nodes):
            devices[node] = devices.get(node, 0) + count
    return devices
