"""The agent's report about a rank that has ended."""

import time
from typing import Any, Dict

from . import memory
from .ranks import Attempt, Rank

ERROR_TO_EXIT_SECONDS = 10.0  # torch takes a second or more to shut down; an older traceback is unrelated to the exit


def of_exit(attempt: Attempt, rank: Rank) -> Dict[str, Any]:
    """Report the end of a rank, whatever its exit code."""
    failed = rank.status != 0
    now, error_time = time.time(), rank.output.error_time
    return {
        "attempt": attempt.number,
        "rank": rank.rank,
        "status": rank.status,
        "why": "",
        "time": now,
        "error_time": error_time if failed and now - error_time < ERROR_TO_EXIT_SECONDS else 0.0,
        "oom_kills": memory.oom_kills() - attempt.oom_kills_before if failed else 0,
        "tail": rank.output.tail.decode("utf-8", "replace") if failed else "",
        "log_problem": rank.output.log_problem,
        **_of_steps(rank),
    }


def _of_steps(rank: Rank) -> Dict[str, Any]:
    """Report the steps of a rank that PyTorch's optimizers made; nothing for other programs."""
    if rank.pulse is None or not rank.pulse.steps:
        return {}
    page = rank.pulse
    times = sorted(page.times().items())
    return {"steps": page.steps, "first_step": page.first_at, "last_step": page.last_at, "step_times": times}


def of_no_start(attempt: Attempt, rank: int, why: str) -> Dict[str, Any]:
    """Report a rank that could not be started; the exit code is 127, as in a shell."""
    nothing = {"error_time": 0.0, "oom_kills": 0, "tail": "", "log_problem": ""}
    return {"attempt": attempt.number, "rank": rank, "status": 127, "why": why, "time": time.time(), **nothing}
