"""Run a script three times and compare what it did: on one rank, on one in another order, on several."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from echelon.errors import RunError, UsageError
from echelon.host import Finished, Host

LIMIT_SECONDS = 24 * 3600.0
COMPARE_SECONDS = 600.0


def prove(
    words: Sequence[str], *, num_ranks: int, num_steps: int, host: Host, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return the verdict as `echelon.train.compare` gives it, and what it means; raise RunError where a run fails.

    `words` stand after the options of `echelon run`.
    """
    try:
        folder = tempfile.mkdtemp(
            prefix=".echelon-prove-", dir=os.getcwd()
        )  # which all nodes of a job see, unlike /tmp
    except OSError as error:
        raise UsageError(
            f"{os.getcwd()} cannot be written, and the runs are recorded there: {error.strerror}",
            hint="cd to a folder of your own",
        ) from None
    try:
        oracle = _run(folder, "one", words, 1, num_steps, host, say)
        again = _run(folder, "reordered", words, 1, num_steps, host, say)
        other = _run(folder, "several", words, num_ranks, num_steps, host, say)
        command = (sys.executable, "-m", "echelon.train.compare", oracle, again, other, str(num_ranks))
        done = host.ask(command, timeout_seconds=COMPARE_SECONDS)
        if done.exit_code != 0:
            raise RunError(f"the records could not be compared:\n{done.stderr}")
        result: dict[str, Any] = json.loads(done.stdout)
        if result["is_unknown"]:
            raise RunError(f"{result['verdict']}: {result['why']}", hint="seed it: torch.manual_seed(0) at its top")
        return {**result, "num_ranks": num_ranks}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    folder: str,
    name: str,
    words: Sequence[str],
    num_ranks: int,
    num_steps: int,
    host: Host,
    say: Callable[[str], None],
) -> str:
    record = os.path.join(folder, name)
    os.mkdir(record)
    environ = [f"ECHELON_RECORD={record}", f"ECHELON_RECORD_STEPS={num_steps}"]
    if name == "reordered":
        environ.append("ECHELON_RECORD_REORDERED=1")
    options = [word for pair in environ for word in ("--env", pair)]
    run_directory = os.path.join(folder, f"run-{name}")
    order = ", the samples of each batch in another order" if name == "reordered" else ""
    say(f"{num_ranks} rank{'s' if num_ranks > 1 else ''}{order} …")
    done = host.ask(
        (sys.executable, "-m", "echelon", "run", "--nnodes", "1", "-n", str(num_ranks), "--scale", "data",
         "--show", "none", "--run-dir", run_directory, *options, *words),
        timeout_seconds=LIMIT_SECONDS,
    )  # fmt: skip
    _refuse_failure(done, num_ranks, record)
    return record


def _refuse_failure(done: Finished, num_ranks: int, record: str) -> None:
    if done.exit_code != 0:
        raise RunError(f"the script fails on {num_ranks} rank{'s' if num_ranks > 1 else ''}:\n{done.stderr.rstrip()}")
    if not os.path.exists(os.path.join(record, "steps.jsonl")):
        raise RunError(
            "the script ended without an optimizer step of torch.optim, so there is nothing to compare",
            hint="does it train in this process, with a torch optimizer?",
        )
