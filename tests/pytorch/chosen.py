"""Print the tests of chosen.txt that this PyTorch can pass, a line each."""

from pathlib import Path

import torch

LIST = Path(__file__).with_suffix(".txt")


def chosen(version: str) -> list[str]:
    """Return the tests for a version; those below "from 2.9" need it."""
    needed, tests = (0, 0), []
    for line in LIST.read_text().splitlines():
        if line.startswith("from "):
            needed = _numbers(line.removeprefix("from "))
        elif not line.startswith("#") and _numbers(version) >= needed:
            tests.append(line)
    return tests


def _numbers(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


if __name__ == "__main__":
    print(*chosen(torch.__version__), sep="\n")
