"""Run trainings with a planted cause of slowness, and healthy ones, and print what the report names.

python -m benchmarks.causes [NAME …]

With the Python of `make frameworks-test`, in .venv/frameworks/torch, trainings of Lightning and the Trainer too.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

from tests.monitor import causes
from tests.monitor.causes import DDP, KINDS, LIGHTNING, TRAINER, Cause

PACKAGES = {LIGHTNING: "lightning", TRAINER: "transformers"}
RIGHT = ("named", "silent")
MOST_RUNS = 2


def main() -> None:
    """Print a table of causes and kinds, the number of each verdict, and all sentences where it is no right one."""
    kinds = [kind for kind in KINDS if kind not in PACKAGES or find_spec(PACKAGES[kind])]
    verdicts: Counter[str] = Counter()
    wrong: list[str] = []
    print(f"| planted | {' | '.join(kinds)} | said of the last one |\n|{' --- |' * (len(kinds) + 2)}")
    for cause in (*causes.CAUSES, *causes.OF_DDP, *causes.HEALTHY):
        if sys.argv[1:] and cause.name not in sys.argv[1:]:
            continue
        said = ""
        cells = dict.fromkeys(kinds, "–")
        for kind in kinds if cause not in causes.OF_DDP else [DDP]:
            cells[kind], said = _run(cause, kind, wrong)
            verdicts[cells[kind]] += 1
        print(f"| {cause.name} | {' | '.join(cells.values())} | {said} |", flush=True)
    print("\n" + ", ".join(f"{number} {verdict}" for verdict, number in verdicts.most_common()))
    print("\n".join(wrong))


def _run(cause: Cause, kind: str, wrong: list[str]) -> tuple[str, str]:
    """Return the verdict on a training, and the sentence that names it; other programs may disturb the first run."""
    for number in range(1, MOST_RUNS + 1):
        with tempfile.TemporaryDirectory() as folder:
            lines = causes.told(cause, kind, Path(folder))
        verdict = causes.verdict(cause, kind, lines)
        if verdict in RIGHT:
            said = " ".join(causes.naming(cause, kind, lines).split()) if cause.words else ""
            return verdict if number == 1 else f"{verdict} in run {number}", said
        wrong += [f"\n{cause.name}, {kind}, run {number}:", *lines]
    return verdict, ""


if __name__ == "__main__":
    main()
