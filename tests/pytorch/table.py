"""The row of docs/versions.md for the PyTorch and the Python that run this: `python -m tests.pytorch.table RESULTS`.

RESULTS is a folder with the JUnit files that `tools/run-torches` has written.
"""

import datetime
import platform
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "versions.md"
SUITES = ("hooks", "scripts", "strategies")
_ROW = re.compile(r"\| \d+\.\d+\S* \|.*\n")


def row(folder: Path, version: str, python: str, day: str) -> str:
    """Return a row: the versions, what passed of each suite, and the day."""
    return f"| {version} | {python} | {' | '.join(_counts(folder / f'{suite}.xml') for suite in SUITES)} | {day} |\n"


def _counts(path: Path) -> str:
    """Return "66 passed", with what was skipped or has failed behind it; "not run" without a file."""
    if not path.exists():
        return "not run"
    suite = next(ElementTree.parse(path).getroot().iter("testsuite"))
    skipped, failed = int(suite.attrib["skipped"]), int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    passed = int(suite.attrib["tests"]) - skipped - failed
    return ", ".join(
        [f"{passed} passed", *([f"{skipped} skipped"] if skipped else []), *([f"{failed} failed"] if failed else [])]
    )


def put(page: str, new: str) -> str:
    """Return the page with a row in its place: the newest version first, and each version once."""
    rows = {_key(old): old for old in _ROW.findall(page)}
    rows[_key(new)] = new
    head, _, rest = page.partition("| --- | --- | --- | --- | --- | --- |\n")
    table = "".join(rows[key] for key in sorted(rows, reverse=True))
    return f"{head}| --- | --- | --- | --- | --- | --- |\n{table}{_ROW.sub('', rest)}"


def _key(line: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", line.split("|")[1].partition("+")[0])))


def main() -> None:
    """Write the row of this process's versions."""
    import torch

    today = datetime.date.today().isoformat()
    new = row(Path(sys.argv[1]), str(torch.__version__), platform.python_version(), today)
    PAGE.write_text(put(PAGE.read_text(), new))
    print(new, end="")


if __name__ == "__main__":
    main()
