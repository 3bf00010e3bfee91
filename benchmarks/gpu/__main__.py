"""Show on this machine's GPUs what can be shown there, and write docs/gpu.md: `make gpu PYTHON=…`."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.gpu import facts, page
from benchmarks.gpu.bench import ROOT, Bench, this_python
from benchmarks.gpu.row import FAILED, UNRUN, Row, Seen
from benchmarks.gpu.rows import ROWS

NO_DEVICE = 2
AT_A_TIME = max(1, min(4, (os.cpu_count() or 1) // 3))
"""Rows side by side: each has two ranks and the process that computes the first step."""


def main(arguments: list[str]) -> int:
    """Run the rows that are asked for; return 0, 1 where one failed, 2 where there is no device."""
    asked = _read(arguments)
    here = facts.ask(this_python())
    why_not = "torch is missing" if asked.cpu and not here.torch else "" if asked.cpu else here.why_not()
    if why_not:
        print(f"gpu: error: {why_not}", file=sys.stderr)
        return NO_DEVICE
    for name in here.missing:
        print(f"gpu: {name} is not installed; its rows are skipped", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            python=this_python(),
            folder=Path(folder),
            device="cpu" if asked.cpu else "cuda",
            num_devices=0 if asked.cpu else len(here.devices),
            missing=here.missing,
            log=Path(asked.log) if asked.log else None,
        )
        seen = _show(bench, asked.only)
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    out = Path(asked.out)
    before = out.read_text(encoding="utf-8") if out.exists() else ""
    out.write_text(page.measured(here, seen, date=date, is_cpu=asked.cpu, before=before), encoding="utf-8")
    print(f"gpu: written: {asked.out}", file=sys.stderr)
    return int(any(each.how == FAILED for each in seen.values()))


def _read(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("--only", default=",".join(names), help=f"rows, of: {','.join(names)}")
    parser.add_argument("--out", default="", help="the page (default: docs/gpu.md)")
    parser.add_argument("--log", default="", help="a file for each command with all that it prints")
    parser.add_argument("--cpu", action="store_true", help="try this program itself where there is no GPU; needs --out")
    asked = parser.parse_args(arguments)
    asked.only = asked.only.split(",")
    unknown = [name for name in asked.only if name not in names]
    if unknown:
        parser.error(f"--only {unknown[0]}: there is no such row; valid: {', '.join(names)}")
    if asked.cpu and not asked.out:
        parser.error("--cpu shows nothing about a GPU, and does not write docs/gpu.md: --out FILE")
    asked.out = asked.out or str(ROOT / "docs" / "gpu.md")
    return asked


def _show(bench: Bench, names: list[str]) -> dict[str, Seen]:
    """Run the rows that leave others undisturbed side by side, and then each of the others."""
    asked = [row for row in ROWS if row.name in names]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        shown = pool.map(partial(_seen, bench), [row for row in asked if not row.is_alone])
        seen = dict(shown)
    return seen | dict(_seen(bench, row) for row in asked if row.is_alone)


def _seen(bench: Bench, row: Row) -> tuple[str, Seen]:
    has_time = bench.seconds_left > 0
    result = row.show(bench) if has_time else Seen(how=UNRUN, what="the eight minutes were over")
    print(f"gpu: {row.name}: {result.how}: {result.what}", file=sys.stderr, flush=True)
    return row.name, result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
