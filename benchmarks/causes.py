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
    num_right = {causes.CAUSES: 0, causes.HEALTHY: 0}
    for title, chosen in (("planted", causes.CAUSES), ("healthy", causes.HEALTHY)):
        print(f"| {title} | said | right |\n| --- | --- | --- |")
        for cause in chosen:
            if only and cause.name not in only:
                continue
            with tempfile.TemporaryDirectory() as folder:
                lines = causes.told(cause, Path(folder))
            naming = causes.naming(cause, lines) if chosen is causes.CAUSES else ""
            is_right = bool(naming) if chosen is causes.CAUSES else causes.is_silent(lines)
            num_right[chosen] += is_right
            said = " ".join(naming.split()) or "<br>".join(" ".join(each.split()) for each in lines)
            print(f"| {cause.name} | {said} | {'yes' if is_right else 'no'} |")
            sys.stdout.flush()
        print(f"\n{num_right[chosen]} of {len(chosen)}\n")


if __name__ == "__main__":
    main()
