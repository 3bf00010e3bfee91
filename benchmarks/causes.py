"""Run trainings with a planted cause of slowness, and healthy ones, and print what the report names.

python -m benchmarks.causes [NAME …]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.monitor import causes


def main() -> None:
    """Print a table, with the number of causes that are named, and of healthy trainings of which nothing is said."""
    only = sys.argv[1:]
    named = silent = 0
    chosen = [cause for cause in (*causes.CAUSES, *causes.HEALTHY) if not only or cause.name in only]
    print("| planted | said | named |\n| --- | --- | --- |")
    for cause in chosen:
        with tempfile.TemporaryDirectory() as folder:
            lines = causes.told(cause, Path(folder))
        is_healthy = cause in causes.HEALTHY
        is_right = causes.is_silent(lines) if is_healthy else causes.is_named(cause, lines)
        named += is_right and not is_healthy
        silent += is_right and is_healthy
        said = "<br>".join(" ".join(each.split()) for each in lines)
        print(f"| {cause.name} | {said} | {'yes' if is_right else 'no'} |")
        sys.stdout.flush()
    num_healthy = sum(cause in causes.HEALTHY for cause in chosen)
    print(f"\n{named} of {len(chosen) - num_healthy} named; {silent} of {num_healthy} healthy ones without a word")


if __name__ == "__main__":
    main()
