"""Ask Slurm why a job or its nodes went away."""

from __future__ import annotations

import re
from dataclasses import dataclass

from echelon.environment import hostlist
from echelon.errors import EchelonError
from echelon.host import Host

ASK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Slurm's reason for the end of a job."""

    text: str
    is_node_failure: bool


def why_ended(said: str, host: Host) -> Verdict | None:
    """Return Slurm's reason, from srun's output or from the job's state; None if there is none."""
    verdict = from_srun(said)
    if verdict == CANCELLED and _is_running(host):
        return Verdict(text="the step was cancelled, but the job continues", is_node_failure=False)
    return verdict or _from_state(host)


# slurmstepd: error: *** STEP 7.0 ON nid005000 CANCELLED AT 2026-11-21T05:37:12 DUE TO TIME LIMIT ***
_DUE_TO = {
    "TIME LIMIT": "the job reached its time limit",
    "PREEMPTION": "the job was preempted by another",
    "NODE FAILURE": "a node of the job failed",
    "JOB REQUEUE": "the job was requeued",
    "": "the job was cancelled",
}


CANCELLED = Verdict(text=_DUE_TO[""], is_node_failure=False)
"""srun's message is the same for a cancelled job and a cancelled step."""


def from_srun(said: str) -> Verdict | None:
    """Parse srun's own messages for the reason."""
    lost = list(dict.fromkeys(re.findall(r"error: Node failure on (\S+)", said)))
    if lost:
        return Verdict(text=", ".join(f"Slurm reports that {node} is down" for node in lost), is_node_failure=True)
    match = re.search(r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+?))? \*\*\*", said)
    if not match:
        return None
    reason = match.group(1) or ""
    text = _DUE_TO.get(reason, f"the job was cancelled due to {reason.lower()}")
    return Verdict(text=text, is_node_failure=reason == "NODE FAILURE")


def _is_running(host: Host) -> bool:
    command = ("scontrol", "--oneliner", "show", "job", host.environ.get("SLURM_JOB_ID", ""))
    try:
        return "JobState=RUNNING" in host.ask(command, timeout_seconds=ASK_SECONDS).stdout
    except EchelonError:
        return False


def _from_state(host: Host) -> Verdict | None:
    job_id = host.environ.get("SLURM_JOB_ID", "")
    ask_nodes = ("sinfo", "--noheader", "--format=%N %T", "--states=down,fail,no_respond")
    try:
        shown = host.ask(("scontrol", "--oneliner", "show", "job", job_id), timeout_seconds=ASK_SECONDS)
        down = host.ask(ask_nodes, timeout_seconds=ASK_SECONDS)
    except EchelonError:
        return None
    return read(shown.stdout, down.stdout, host.environ.get("SLURM_JOB_NODELIST", ""))


_STATES = {
    "CANCELLED": "the job was cancelled",
    "TIMEOUT": "the job reached its time limit",
    "PREEMPTED": "the job was preempted by another",
    "NODE_FAIL": "a node of the job failed",
    "OUT_OF_MEMORY": "the job used more memory than it asked for",
    "DEADLINE": "the job reached its deadline",
    "REQUEUED": "the job was requeued",
}


def read(job_line: str, down_lines: str, node_text: str) -> Verdict | None:
    """Parse `scontrol --oneliner show job` and a list of nodes that are down."""
    match = re.search(r"\bJobState=(\w+)", job_line)
    state = match.group(1) if match else ""
    ours = set(hostlist.expand(node_text)) if node_text else set()
    lost = []
    for line in down_lines.splitlines():
        names, _, node_state = line.strip().partition(" ")
        lost += [f"{name} is {node_state}" for name in hostlist.expand(names) if name in ours]
    text = _STATES.get(state, "")
    if lost:
        return Verdict(text=", ".join(dict.fromkeys(lost)), is_node_failure=True)
    if text:
        return Verdict(text=text, is_node_failure=state == "NODE_FAIL")
    return None
