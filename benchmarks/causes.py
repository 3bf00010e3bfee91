"""Run trainings with a planted cause of slowness, and healthy ones, and print what the report names.

python -m benchmarks.causes [NAME …]

With the Python of `make frameworks-test`, in .venv/frameworks/torch, the causes in Lightning and in the Trainer too.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.monitor import causes


def main() -> None:
    """Print a table, with the number of causes that are named, and of healthy trainings of which nothing is said."""
    only = sys.argv[1:]
    has_frameworks = all(map(find_spec, ("lightning", "transformers")))
    planted = causes.CAUSES + (causes.OF_FRAMEWORKS if has_frameworks else ())
    num_right = {planted: 0, causes.HEALTHY: 0}
    for title, chosen in (("planted", planted), ("healthy", causes.HEALTHY)):
        print(f"| {title} | said | right |\n| --- | --- | --- |")
        for cause in chosen:
            if only and cause.name not in only:
                continue
            with tempfile.TemporaryDirectory() as folder:
                lines = causes.told(cause, Path(folder))
            naming = causes.naming(cause, lines) if chosen is planted else ""
            is_right = bool(naming) if chosen is planted else causes.is_silent(lines)
            num_right[chosen] += is_right
            said = " ".join(naming.split()) or "<br>".join(" ".join(each.split()) for each in lines)
            print(f"| {cause.name} | {said} | {'yes' if is_right else 'no'} |")
            sys.stdout.flush()
        print(f"\n{num_right[chosen]} of {len(chosen)}\n")


if __name__ == "__main__":
    main()
