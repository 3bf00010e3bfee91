"""Where a rank stands: its state in the kernel, its stacks, its children, and the line of the script."""

import linecache
from typing import Any, Dict, List, Mapping, Tuple

from . import flight_recorder, frames, process_state
from .ranks import Rank

MOST_CHILDREN = 8
MOST_CHARACTERS = 100
FROZEN = ("T", "t", "D", "Z")  # such a process answers no signal


def of_rank(rank: Rank, idle_seconds: float, environ: Mapping[str, str], began: float) -> Dict[str, Any]:
    """Return the facts of one rank for the supervisor."""
    facts = process_state.facts(rank.pid)
    threads, why = _ask(rank, rank.pid, facts["state"])
    children = process_state.descendants([rank.pid])[rank.pid]
    return {
        "rank": rank.rank,
        "pid": rank.pid,
        "idle_seconds": idle_seconds,
        "collective": flight_recorder.pending(rank.rank, environ, began),
        "steps": rank.pulse.steps if rank.pulse is not None else 0,
        **facts,
        "threads": threads,
        "why": why,
        "text": _text(threads),
        "children": [_child(rank, child.pid) for child in children[:MOST_CHILDREN]],
    }


def _child(rank: Rank, pid: int) -> Dict[str, Any]:
    facts = process_state.facts(pid)
    threads, why = _ask(rank, pid, facts["state"])
    return {"pid": pid, **facts, "threads": threads, "why": why, "text": _text(threads)}


def _ask(rank: Rank, pid: int, state: str) -> Tuple[List[frames.Thread], str]:
    if state in FROZEN:
        return [], process_state.STATES[state]
    if rank.pulse is None:
        return [], "it is no Python that echelon has started"
    return rank.pulse.ask(pid)


def _text(threads: List[frames.Thread]) -> str:
    """Return the script's line of code."""
    if not threads:
        return ""
    position = frames.own(threads[0].frames)
    if position is None:
        return ""
    frame = threads[0].frames[position]
    linecache.checkcache(frame.file)
    return linecache.getline(frame.file, frame.line).strip()[:MOST_CHARACTERS]
