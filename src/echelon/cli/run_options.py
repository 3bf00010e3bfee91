"""Options of `echelon run` about checkpoints, time limits, and a parallelism of the user's own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from echelon.errors import UsageError
from echelon.orders.checkpoint import SUBFOLDER, CheckpointOrder, interval
from echelon.plan import exchange
from echelon.plan.exchange import SCALES

_HINT = "echelon run --checkpoint-every 10m …   or --checkpoint-every 200steps"
KEEP = 3
RESTARTS = 3  # how many failures without progress end a run that saves checkpoints


def order(values: Mapping[str, str]) -> CheckpointOrder | None:
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
    return CheckpointOrder(folder=folder, steps=steps, seconds=seconds, keep=_keep(values), resumes="resume" in values)


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
    from echelon.checkpoint.store import CheckpointStore
    from echelon.launch.runs import find
    from echelon.node import private

    run = os.path.abspath(find(name))
    if private.is_run_alive(run):
        raise UsageError(
            f"--resume {name}: this run still works, and two runs would write the same checkpoints",
            hint="wait for its end, or stop it; echelon runs lists the runs that work",
        )
    folder = os.path.join(run, SUBFOLDER)
    checkpoint, findings = CheckpointStore(folder).latest()
    if checkpoint is None:
        why = f": {findings[0]}" if findings else ""
        raise UsageError(
            f"--resume {name}: this run has no whole checkpoint{why}",
            hint="echelon run --checkpoint-every 10m … saves them; echelon checkpoint ls lists them",
        )
    return folder


_FORM = re.compile(r"(?P<path>.+\.py):(?P<name>[^\W\d]\w*)")
_NOT_OWN = {
    "exact": "its sums are in the order of --scale data or fsdp",
    "sync-every": "it is a parallelism itself: ranks train alone and meet",
}
"""Options that choose another parallelism, and why they contradict."""


def scale(values: Mapping[str, str]) -> str:
    """Return the value of --scale; raise UsageError if it is neither a known word nor FILE.py:CLASS."""
    text = values.get("scale", "auto")
    if text in SCALES:
        return text
    match = _FORM.fullmatch(text)
    if not match:
        raise UsageError(
            f"--scale {text or repr('')}: the choices are {', '.join(SCALES)}, or a class in a file: FILE.py:CLASS",
            hint=f"echelon run --scale {SCALES[0]} …",
        )
    for option, why in _NOT_OWN.items():
        if option.replace("-", "_") in values:
            raise UsageError(f"--{option} does not go with --scale {text}: {why}", hint=f"remove --{option}")
    _refuse_without_class(text, match["path"], match["name"])
    return text


def _refuse_without_class(text: str, path: str, name: str) -> None:
    import ast

    from echelon.script.find import read_source
    from echelon.script.source import judge, parse

    if not os.path.exists(path):
        raise UsageError(f"--scale {text}: there is no file {path}", hint=f"ls {os.path.dirname(path) or '.'}")
    source = read_source(path, path)
    judge(source, path, hint=f"python -m py_compile {path}")
    tree = parse(source, path)
    nodes = list(ast.walk(tree)) if tree is not None else []
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    imported = [
        alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assigned = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    if name not in (*classes, *imported, *assigned):
        raise UsageError(
            f"--scale {text}: {path} has no class {name}; its classes are {', '.join(classes) or 'none'}",
            hint=f"--scale {path}:{classes[0]}" if classes else f"write in {path}: class {name}(echelon.Replicated): …",
        )
