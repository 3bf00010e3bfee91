"""Measure what `echelon watch --web` answers for a run of 128 nodes with 8 ranks each.

python -m benchmarks.watch_web
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from tests.monitor.watch import large
from tests.monitor.watch.server import Web

LOOKS = 30


def main() -> None:
    """Ask for each address so many times, each time for a new look at the run, and print times and sizes."""
    with tempfile.TemporaryDirectory() as folder:
        large.write(Path(folder) / "run")
        began = time.perf_counter()
        with Web(Path(folder), "run") as web:
            print(f"first look, with the start of Python: {time.perf_counter() - began:.2f} s")
            for path, more in (("/state.json", {"Accept-Encoding": "gzip"}), ("/state.json", {}), ("/metrics", {})):
                _measure(web, path, more)


def _measure(web: Web, path: str, more: dict[str, str]) -> None:
    fresh, kept = [], []
    for _ in range(LOOKS):
        time.sleep(1.05)
        for times in (fresh, kept):
            began = time.perf_counter()
            answer = web.ask(path, {**web.bearer(), **more})
            times.append((time.perf_counter() - began) * 1e3)
    size = len(answer.content) / 1000
    print(
        f"{path}{' through gzip' if more else ''}: {size:.0f} KB · "
        f"a new look: median {statistics.median(fresh):.0f} ms, "
        f"longest {max(fresh):.0f} ms · again within a second: median {statistics.median(kept):.1f} ms"
    )


if __name__ == "__main__":
    main()
