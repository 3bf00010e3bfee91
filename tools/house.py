"""Print the files and lines of each room of the house, now or at a revision: python tools/house.py [REVISION …]."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "src/echelon/"
SHORT_LINES = 60


def main(revisions: list[str]) -> None:
    """Print a table with a column for each revision; without one, for the files of this folder."""
    columns = [(revision, _of_revision(revision)) for revision in revisions] or [("now", _of_tree())]
    rooms = sorted({room for _, sizes in columns for room in map(_room, sizes)})
    print(f"{'room':14}" + "".join(f"{name[:12]:>12} files  lines" for name, _ in columns))
    for room in [*rooms, ""]:
        print(f"{room or 'sum':14}" + "".join(_cell(sizes, room) for _, sizes in columns))
    for name, sizes in columns:
        short = sum(lines <= SHORT_LINES for lines in sizes.values())
        print(f"{name[:12]}: {short} of {len(sizes)} files have at most {SHORT_LINES} lines")


def _cell(sizes: dict[str, int], room: str) -> str:
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path, count in sizes.items():
        for key in (_room(path), ""):
            files[key] += 1
            lines[key] += count
    return f"{files[room]:>18} {lines[room]:>6}" if files[room] else f"{'–':>18} {'–':>6}"


def _room(path: str) -> str:
    return path.removeprefix(SOURCE).partition("/")[0].removesuffix(".py")


def _of_tree() -> dict[str, int]:
    files = sorted((ROOT / SOURCE).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path.read_bytes().count(b"\n") for path in files}


def _of_revision(revision: str) -> dict[str, int]:
    paths = [path for path in _git("ls-tree", "-r", "--name-only", revision, SOURCE).split() if path.endswith(".py")]
    return {path: _git("show", f"{revision}:{path}").count("\n") for path in paths}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
