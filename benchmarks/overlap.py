"""Measure what helps where the network is slow: `python -m benchmarks.overlap`, from the repository root.

Two ranks train a model of 21 MB over a loopback device whose rate is limited by Linux itself (a token bucket, `tc
qdisc … tbf`, in a network namespace of its own, which needs no root). Both programs are the same script with other
options; they are run in turns, and each turn begins with the other one. A ratio is taken within each turn; a figure is
the median with the least and the greatest value. Examples:

    python -m benchmarks.overlap --quick --only alone
    python -m benchmarks.overlap --rate 400mbit --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks import account
from benchmarks.figures import Figure, Row, Spread, at_most_of_theirs, circumstances, markdown
from benchmarks.meter import BenchmarkError, Meter, clean_environ, program, tool

RATE = "800mbit"
NUM_STEPS = 8  # alone, between two meetings
FASTER = at_most_of_theirs(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same training with two sets of options."""

    title: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    beside: str


_DEFAULT = ("--bucket-mb", "25")
_ALONE = ("--sync-every", str(NUM_STEPS))
PAIRS = {
    "buckets": Pair(
        title="buckets of gradients as measured in the first steps", ours=(), theirs=_DEFAULT, beside="DDP's 25 MB"
    ),
    "bf16": Pair(
        title="gradients travel as bf16", ours=(*_DEFAULT, "--compress", "bf16"), theirs=_DEFAULT, beside="as they are"
    ),
    "alone": Pair(
        title=f"weights averaged every {NUM_STEPS} steps", ours=_ALONE, theirs=_DEFAULT, beside="gradients, each step"
    ),
    "late": Pair(
        title=f"the same, taken in {NUM_STEPS} steps later", ours=(*_ALONE, "--async"), theirs=_ALONE, beside="at once"
    ),
}  # fmt: skip


def main() -> int:
    """Measure the rows asked for and print them."""
    options = _options()
    _require_slow_link(options.rate)
    with account.opened() as counted, tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        num_rounds = 1 if options.quick else options.rounds
        meter = Meter(account=counted, folder=folder, num_rounds=num_rounds, num_calls=1, environ=clean_environ())
        rows = [_measure(meter, PAIRS[name], options.rate) for name in options.only or PAIRS]
    heading = circumstances("overlap", num_rounds, also=f"2 ranks over a link of {options.rate}, ")
    text = f"{heading}\n\n{markdown(rows)}"
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else text)
    return 0 if all(figure.is_reached for row in rows for figure in row.figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overlap", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PAIRS, metavar="ROW", help=f"of {', '.join(PAIRS)}")
    parser.add_argument("--rate", default=RATE, metavar="RATE", help=f"of the network, for tc; {RATE} by default")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how many pairs are run; 5 by default")
    parser.add_argument("--quick", action="store_true", help="one pair only: to see that all of it works")
    parser.add_argument("--json", action="store_true", help="print every single value")
    return parser.parse_args()


def slow_link(rate: str) -> list[str]:
    """Return the words before a command that give it a loopback device of this rate, and no other network."""
    limit = f"ip link set lo mtu 16000 up && tc qdisc add dev lo root tbf rate {rate} burst 256kb latency 500ms"
    return ["unshare", "-rn", "sh", "-c", f'{limit} && exec "$@"', "sh"]


def _require_slow_link(rate: str) -> None:
    missing = [name for name in ("unshare", "ip", "tc") if shutil.which(name) is None]
    if missing:
        raise BenchmarkError(f"a slow link needs {', '.join(missing)}: apt-get install util-linux iproute2")
    done = subprocess.run([*slow_link(rate), "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"a link of {rate} cannot be made here: {done.stderr.strip()}")


def _measure(meter: Meter, pair: Pair, rate: str) -> Row:
    """Run both in turns; whoever was second begins the next turn."""
    print(f"measuring {pair.title} …", file=sys.stderr)
    found: dict[str, list[float]] = {"ours": [], "theirs": []}
    for turn in range(meter.num_rounds):
        for who in ("ours", "theirs") if turn % 2 else ("theirs", "ours"):
            found[who].append(_step(meter, pair.ours if who == "ours" else pair.theirs, rate))
    ours, theirs = (Spread(tuple(found[who])) for who in ("ours", "theirs"))
    figure = Figure(
        what="one step, mean", unit="ms", ours=ours, theirs=theirs, beside=pair.beside, target=FASTER
    )  # fmt: skip
    return Row(title=pair.title, figures=(figure,), notes=())


def _step(meter: Meter, options: Sequence[str], rate: str) -> float:
    """Return how long a step took in one run, in milliseconds."""
    marks = meter.marks()
    run = [tool("echelon"), "run", "-n", "2", "--no-check", *options, program("overlap_plain"), marks]
    meter.run([*slow_link(rate), *run])
    with open(os.path.join(marks, "steps")) as file:
        return float(file.read().split()[0])


if __name__ == "__main__":
    sys.exit(main())
