"""docs/gpu.md, of what was seen, or of nothing yet."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.gpu.facts import Facts
from benchmarks.gpu.row import UNRUN, Seen
from benchmarks.gpu.rows import ROWS

HEAD = """# On a GPU

{state}

```bash
make gpu PYTHON=/path/to/python   # a Python with torch for CUDA or ROCm; default: python3
```

This installs nothing and needs no network. It first reports what is missing. Then it runs the rows below with this
Python on the GPUs of this machine, and writes this page. With 16 cores the rows up to `memory` took two minutes on an
H200, and those from `resume` on took six on an H100. One GPU is enough: two ranks share it. The exit code is 2 without
a GPU, and 1 if a row fails. The rows `transformers` and `lightning` are skipped if these packages are not installed.

`make gpu ROWS="--only one,check"` runs some rows; the others stay as they are on the page. `--out FILE` writes to
another file. `--log FILE` keeps all that the commands print. `--cpu --out FILE` tests the program on a machine without
a GPU; its page says that this shows nothing about GPUs.

"""
NOTHING = """**Nothing of echelon has run on a GPU yet.** The tests run the same code with a stand-in for a GPU
(`tests/train/check`)."""
TAIL = """
How it works: a second process computes the first step on the device and ends. Then rank 0 uses the device, and
[compares its own first step](scale.md#the-first-step-is-compared-with-one-device) with this result. Ranks that share a
device exchange data by gloo, because NCCL refuses two ranks on one device. Gloo cannot send a device's memory from rank
to rank, so echelon copies such tensors to the CPU first.

`benchmarks/gpu/peaks.jsonl` has the bytes that 40 trainings took on an H200 in each phase of a step, and the largest
batches of three in 16 GiB: five trainings ran at a time, on 2026-11-28. Three trainings of T5 failed, and two largest
batches had no time left. `PYTHONPATH=src:. python -m benchmarks.gpu.peaks --out FILE` measures all of them. This
command has not run on a GPU in its present form; its program `programs/peak.py` has.
"""


def unrun() -> str:
    """Return the page of a machine without a GPU."""
    return _page(NOTHING, {})


def measured(facts: Facts, seen: Mapping[str, Seen], *, date: str, is_cpu: bool, before: str = "") -> str:
    """Return the page of what was seen; rows that did not run are those of the page before."""
    devices = "the CPU, which shows nothing about a GPU" if is_cpu else ", ".join(facts.devices)
    nccl = f", NCCL {facts.nccl}" if facts.nccl else ""
    state = f"Last seen on {date} on {devices}: Python {facts.python}, torch {facts.torch} ({facts.build}{nccl})."
    if facts.missing:
        state += f" Not installed: {', '.join(facts.missing)}."
    lines = {name: _line(name, row, f"{date}, {devices}") for name, row in seen.items()}
    without_time = {name: _line(name, row) for name, row in seen.items() if row.how == UNRUN}
    return _page(state, {**lines, **without_time, **_lines_that_stay(before, seen)})


def _lines_that_stay(text: str, seen: Mapping[str, Seen]) -> dict[str, str]:
    """Return the rows of a page that have run before and did not run now, by name."""
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    ran = {name for name, row in seen.items() if row.how != UNRUN}
    return {name: line for name, line in lines.items() if name not in ran and f"| {UNRUN} |" not in line}


def _line(name: str, seen: Seen, where: str = "") -> str:
    promise = next(row.promise for row in ROWS if row.name == name)
    return f"| {name} | {promise} | {seen.how} | {seen.what.replace('|', '/')} | {where} |"


def _page(state: str, lines: Mapping[str, str]) -> str:
    table = ["| row | promise | | what was seen | when and where |", "|---|---|---|---|---|"]
    table += [lines.get(row.name) or _line(row.name, Seen(how=UNRUN, what="")) for row in ROWS]
    return HEAD.format(state=state) + "\n".join(table) + "\n" + TAIL
