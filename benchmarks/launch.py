"""Measure how fast runs start, beside torchrun and srun: `python -m benchmarks.launch`, from the repository root.

Whatever stands beside us is measured in the same run, one after the other (A B A B …), and a figure is the median
with the least and the greatest value. Examples:

    python -m benchmarks.launch --quick --only node commands
    python -m benchmarks.launch --write            updates the table in docs/performance.md
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from importlib import metadata

from benchmarks import account, rows_fleet, rows_here, rows_machine
from benchmarks.figures import Row, markdown
from benchmarks.meter import BenchmarkError, Meter, clean_environ

HERE = {"node": rows_here.node, "again": rows_here.again, "further": rows_here.further, "overhead": rows_here.overhead}
ON_SLURM = ("nodes", "plain")
ALONE = {
    "fleet": rows_fleet.fleet,
    "commands": rows_here.commands,
    "plans": rows_machine.plans,
    "topology": rows_machine.topology,
}
NAMES = (*HERE, *ON_SLURM, *ALONE)
PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "performance.md")
BEGIN, END = "<!-- printed by benchmarks/launch.py -->", "<!-- until here -->"


def main() -> int:
    """Measure the rows asked for and print them."""
    options = _options()
    with account.opened() as counted, tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        meter = Meter(
            account=counted,
            folder=folder,
            num_rounds=1 if options.quick else options.rounds,
            num_calls=3 if options.quick else 20,
            environ=clean_environ(),
        )
        rows = [row for name in options.only or NAMES if (row := _try(name, meter)) is not None]
    text = f"{_circumstances(meter.num_rounds)}\n\n{markdown(rows)}"
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else text)
    if options.write:
        _write(text)
    is_complete = len(rows) == len(options.only or NAMES)
    return 0 if is_complete and all(figure.is_reached for row in rows for figure in row.figures) else 1


def _try(name: str, meter: Meter) -> Row | None:
    """Measure one row; what cannot be measured here is said, and the others go on."""
    print(f"measuring {name} …", file=sys.stderr)
    try:
        return _measure(name, meter)
    except BenchmarkError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None


def _measure(name: str, meter: Meter) -> Row:
    if name in ON_SLURM:
        from benchmarks import rows_slurm

        return {"nodes": rows_slurm.nodes, "plain": rows_slurm.plain}[name](meter)
    return {**HERE, **ALONE}[name](meter)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.launch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="ROW", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each is measured; 5 by default")
    parser.add_argument("--quick", action="store_true", help="one round only: to see that all of it works")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print the table as the documentation has it (default)")
    form.add_argument("--json", action="store_true", help="print every single value")
    parser.add_argument("--write", action="store_true", help=f"put the table into {os.path.relpath(PAGE)}")
    return parser.parse_args()


def _circumstances(num_rounds: int) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "echelon"))
    return (
        f"Measured on {datetime.date.today()}: {os.cpu_count()} cores ({_processor()}), Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}; median of {num_rounds} with least and greatest value."
    )


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _write(text: str) -> None:
    with open(PAGE, encoding="utf-8") as file:
        before, begin, rest = file.read().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchmarkError(f"{PAGE} lacks {BEGIN} or {END}: put both back, each on a line of its own")
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
