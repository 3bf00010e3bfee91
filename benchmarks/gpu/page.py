"""docs/gpu.md, of what was seen, or of nothing yet."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.gpu.facts import Facts
from benchmarks.gpu.rows import ROWS, UNRUN, Seen

HEAD = """# On a GPU

{state}

```bash
make gpu PYTHON=/path/to/python   # a Python with torch for CUDA or ROCm; default: python3
```

This installs nothing and needs no network. It says what is missing, runs the rows below with that Python on the GPUs of
this machine in under eight minutes, and writes this page. One GPU is enough: two ranks then share it. Without a GPU it
says which device is missing, and ends with exit code 2; a row that fails makes it 1. What `transformers` and
`lightning` do when they are imported is looked at where they are installed.

`make gpu ROWS="--only one,check"` runs some rows, `--out FILE` writes elsewhere, and `--cpu` tries the program itself
where there is no GPU: its page says that this shows nothing about one.

"""
NOTHING = """**Nothing of echelon has run on a GPU yet.** The tests walk the same code with a stand-in for one
(`tests/train/check`)."""
TAIL = """
How it works: rank 0 [compares its first step](scale.md#the-first-step-is-compared-with-one-device) with that of a
process that uses the device before it, and has left it when rank 0 begins. Ranks that share a device exchange by gloo,
for NCCL refuses two ranks of one device.
"""


def unrun() -> str:
    """Return the page of a machine without a GPU."""
    return _page(NOTHING, {})


def measured(facts: Facts, seen: Mapping[str, Seen], *, date: str, is_cpu: bool) -> str:
    """Return the page of what was seen."""
    devices = "the CPU, which shows nothing about a GPU" if is_cpu else ", ".join(facts.devices)
    nccl = f", NCCL {facts.nccl}" if facts.nccl else ""
    state = f"Seen on {date} on {devices}: Python {facts.python}, torch {facts.torch} ({facts.build}{nccl})."
    if facts.missing:
        state += f" Not installed: {', '.join(facts.missing)}."
    return _page(state, seen)


def _page(state: str, seen: Mapping[str, Seen]) -> str:
    lines = ["| row | promise | | what was seen |", "|---|---|---|---|"]
    for row in ROWS:
        result = seen.get(row.name, Seen(how=UNRUN, what=""))
        lines.append(f"| {row.name} | {row.promise} | {result.how} | {result.what.replace('|', '/')} |")
    return HEAD.format(state=state) + "\n".join(lines) + "\n" + TAIL
