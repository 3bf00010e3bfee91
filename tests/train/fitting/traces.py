"""Start the program that traces and measures, and read what it leaves."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import warm
from tests.train.fitting.measured import course_of

ROOT = Path(__file__).parents[3]
ROUNDED = 512  # bytes, to which PyTorch's allocator rounds on a device


def order(target: Path | str, *, arguments: tuple[str, ...] = (), device: str = "gpu", **more: Any) -> dict[str, Any]:
    """Return the order of a trace."""
    return {
        "target": str(target), "arguments": list(arguments), "device": device, "device_bytes": 80 << 30, "assumed": {},
        **more,
    }  # fmt: skip


def run(folder: Path, jobs: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Do jobs by name, and return their results; a job that left none has {"failed": what it said}."""
    lines = []
    for name, job in jobs.items():
        (folder / name).mkdir()
        lines.append(json.dumps({**job, "out": str(folder / f"{name}.json"), "folder": str(folder / name)}))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
    (folder / "jobs").write_text("\n".join(lines))
    done = warm.run(["-m", "tests.train.fitting.forks", str(folder / "jobs")], cwd=ROOT, environ=environ, timeout=280.0)
    assert done.returncode == 0, done.stderr
    return {name: _read(folder / f"{name}.json") for name in jobs}


def _read(path: Path) -> dict[str, Any]:
    if path.exists():
        return json.loads(path.read_text("utf-8"))
    return {"failed": {"kind": "no result", "trace": Path(f"{path}.stderr").read_text("utf-8")}}


def said(folder: Path, name: str) -> str:
    """Return what a job wrote to its standard output and error."""
    return "".join((folder / f"{name}.json.{stream}").read_text("utf-8") for stream in ("stdout", "stderr"))


def course(log: dict[str, Any], *, rounded: int = 1) -> dict[str, int]:
    """Return the live bytes of each phase of the last step of a trace, storages rounded up."""
    return course_of(_changes(log, rounded))


def _changes(log: dict[str, Any], rounded: int) -> "Iterator[int | str]":
    sizes = [0 if row[1] == "workspace" else -(-row[0] // rounded) * rounded for row in log["tensors"]]
    for event in log["events"]:
        if isinstance(event, int):
            yield sizes[event] if event >= 0 else -sizes[-event - 1]
        elif isinstance(event, str):
            yield event


def kinds(log: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of each category at the end; those of gradients where the last optimizer begins."""
    live: set[int] = set()
    result = {}
    for event in log["events"]:
        if isinstance(event, int):
            (live.add if event >= 0 else live.remove)(max(event, -event - 1))
        elif event in ("optimizer", "end"):
            names = ("gradient",) if event == "optimizer" else ("parameter", "state")
            rows = [log["tensors"][number] for number in live]
            result |= {name: sum(size for size, kind, *_ in rows if kind == name) for name in names}
    return result
