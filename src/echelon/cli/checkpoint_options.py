"""The options of checkpoints: --checkpoint-every, --keep-checkpoints and --resume."""

from __future__ import annotations

import re
from collections.abc import Mapping

from echelon.checkpoint_order import SUBFOLDER, Order, interval
from echelon.errors import UsageError
from echelon.plan import exchange

_HINT = "echelon run --checkpoint-every 10m …   or --checkpoint-every 200steps"
KEEP = 3
RESTARTS = 3
"""How many failures without progress end a run that saves checkpoints."""


def order(values: Mapping[str, str]) -> Order | None:
    """Return what ranks are asked to save; the folder is known when the run has a directory. None: nothing is saved."""
    if "checkpoint_every" not in values:
        for name in ("keep_checkpoints", "resume"):
            if name in values:
                option = "--" + name.replace("_", "-")
                raise UsageError(
                    f"{option} is for a run that saves checkpoints, and --checkpoint-every is missing",
                    hint=f"echelon run --checkpoint-every 10m {option} {values[name]} …",
                )
        return None
    if values.get("scale") == "off":
        raise UsageError(
            "--checkpoint-every saves a script for one device, and --scale off leaves the script alone",
            hint="remove --scale off; a script that distributes itself saves by itself",
        )
    exchange.refuse_with_checkpoints(values)
    steps, seconds = _interval(values["checkpoint_every"])
    folder = _folder_of(values["resume"]) if "resume" in values else ""
    return Order(folder=folder, steps=steps, seconds=seconds, keep=_keep(values), resumes="resume" in values)


def restarts(values: Mapping[str, str]) -> str:
    """Return what --max-restarts is where it is not given."""
    return str(RESTARTS if "checkpoint_every" in values else 0)


def _interval(text: str) -> tuple[int, float]:
    steps_and_seconds = interval(text)
    if steps_and_seconds is None:
        raise UsageError(f"--checkpoint-every {text or repr('')}: give 10m, 2h, 90s or 200steps", hint=_HINT)
    return steps_and_seconds


def _keep(values: Mapping[str, str]) -> int:
    text = values.get("keep_checkpoints", str(KEEP))
    if not re.fullmatch(r"[0-9]{1,6}", text) or not int(text):
        raise UsageError(
            f"--keep-checkpoints {text or repr('')}: give a number of checkpoints from 1 on",
            hint=f"echelon run --checkpoint-every 10m --keep-checkpoints {KEEP} …",
        )
    return int(text)


def _folder_of(name: str) -> str:
    import os

    from echelon.checkpoint.store import Store
    from echelon.launch.runs import find
    from echelon.node import run_lock

    run = os.path.abspath(find(name))
    if run_lock.is_held(run):
        raise UsageError(
            f"--resume {name}: this run still works, and two runs would write the same checkpoints",
            hint="wait for its end, or stop it; echelon runs lists the runs that work",
        )
    folder = os.path.join(run, SUBFOLDER)
    found, findings = Store(folder).latest()
    if found is None:
        why = f": {findings[0]}" if findings else ""
        raise UsageError(
            f"--resume {name}: this run has no whole checkpoint{why}",
            hint="echelon run --checkpoint-every 10m … saves them; echelon checkpoint ls lists them",
        )
    return folder
