"""Ask Slurm why a job or its nodes went away."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

from echelon.environment import hostlist
from echelon.errors import EchelonError
from echelon.host import Host, ToolSlow
from echelon.scheduler.protocol import EndReason

ASK_SECONDS = 5.0
NUM_TURNS = 3  # a slurmctld that takes nodes down is busy, and some turns are lost on it
PAUSE_SECONDS = 1.0
_ASK_NODES = ("sinfo", "--noheader", "--format=%N %T", "--states=down,fail,no_respond")


def why_ended(said: str, host: Host) -> EndReason | None:
    """Return Slurm's reason, from srun's output or from the job's state; None if there is none."""
    verdict = from_srun(said)
    if verdict == CANCELLED and _is_running(host):
        return EndReason(text="the step was cancelled, but the job continues", is_node_failure=False)
    return verdict or _from_state(host)


# slurmstepd: error: *** STEP 7.0 ON nid005000 CANCELLED AT 2026-11-21T05:37:12 DUE TO TIME LIMIT ***
_DUE_TO = {
    "TIME LIMIT": "the job reached its time limit",
    "PREEMPTION": "the job was preempted by another",
    "NODE FAILURE": "a node of the job failed",
    "JOB REQUEUE": "the job was requeued",
    "": "the job was cancelled",
}


CANCELLED = EndReason(text=_DUE_TO[""], is_node_failure=False)
"""srun's message is the same for a cancelled job and a cancelled step."""


def from_srun(said: str) -> EndReason | None:
    """Parse srun's own messages for the reason."""
    lost = list(dict.fromkeys(re.findall(r"error: Node failure on (\S+)", said)))
    if lost:
        return EndReason(text=", ".join(f"Slurm reports that {node} is down" for node in lost), is_node_failure=True)
    match = re.search(r"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+?))? \*\*\*", said)
    if not match:
        return None
    reason = match.group(1) or ""
    text = _DUE_TO.get(reason, f"the job was cancelled due to {reason.lower()}")
    return EndReason(text=text, is_node_failure=reason == "NODE FAILURE")


def nodes_down(nodes: Sequence[str], said: str, host: Host) -> dict[str, str]:
    """Return those nodes that Slurm took down, by srun's own words or by their states, each with a text."""
    lost = {node: f"{node} is down" for node in re.findall(r"error: Node failure on (\S+)", said) if node in nodes}
    try:
        down = _ask(host, _ASK_NODES)
    except EchelonError:
        return lost
    return {**lost, **{node: f"{node} is {state}" for node, state in _states(down) if node in nodes}}


def _ask(host: Host, command: tuple[str, ...]) -> str:
    """Return Slurm's answer; raise EchelonError if its command is missing, or fails each time."""
    for turn in range(NUM_TURNS):
        if turn:
            time.sleep(PAUSE_SECONDS)
        try:
            answer = host.ask(command, timeout_seconds=ASK_SECONDS)
        except ToolSlow:
            continue
        if answer.exit_code == 0:
            return answer.stdout
    raise EchelonError(f"Slurm does not answer: {' '.join(command)}", hint="scontrol ping")


def _states(lines: str) -> Iterator[tuple[str, str]]:
    """Parse sinfo's lines, such as `nid[005001-005002] down*`."""
    for line in lines.splitlines():
        names, _, state = line.strip().partition(" ")
        yield from ((name, state) for name in hostlist.expand(names))


def _is_running(host: Host) -> bool:
    command = ("scontrol", "--oneliner", "show", "job", host.environ.get("SLURM_JOB_ID", ""))
    try:
        return "JobState=RUNNING" in _ask(host, command)
    except EchelonError:
        return False


def _from_state(host: Host) -> EndReason | None:
    job_id = host.environ.get("SLURM_JOB_ID", "")
    try:
        shown = _ask(host, ("scontrol", "--oneliner", "show", "job", job_id))
        down = _ask(host, _ASK_NODES)
    except EchelonError:
        return None
    return read(shown, down, host.environ.get("SLURM_JOB_NODELIST", ""))


_STATES = {
    "CANCELLED": "the job was cancelled",
    "TIMEOUT": "the job reached its time limit",
    "PREEMPTED": "the job was preempted by another",
    "NODE_FAIL": "a node of the job failed",
    "OUT_OF_MEMORY": "the job used more memory than it asked for",
    "DEADLINE": "the job reached its deadline",
    "REQUEUED": "the job was requeued",
}


def read(job_line: str, down_lines: str, node_text: str) -> EndReason | None:
    """Parse `scontrol --oneliner show job` and a list of nodes that are down."""
    match = re.search(r"\bJobState=(\w+)", job_line)
    state = match.group(1) if match else ""
    ours = set(hostlist.expand(node_text)) if node_text else set()
    lost = [f"{name} is {node_state}" for name, node_state in _states(down_lines) if name in ours]
    text = _STATES.get(state, "")
    if lost:
        return EndReason(text=", ".join(dict.fromkeys(lost)), is_node_failure=True)
    if text:
        return EndReason(text=text, is_node_failure=state == "NODE_FAIL")
    return None
