"""Print the tests of chosen.txt that this PyTorch can pass, a line each."""

from pathlib import Path

import torch

from echelon.pytorch.internals import numbers

LIST = Path(__file__).with_suffix(".txt")


def chosen(version: str) -> list[str]:
    """Return the tests for a version; those below "from 2.9" need it."""
    needed, tests = (0, 0), []
    for line in LIST.read_text().splitlines():
        if line.startswith("from "):
            needed = numbers(line.removeprefix("from "))
        elif not line.startswith("#") and numbers(version) >= needed:
            tests.append(line)
    return tests


if __name__ == "__main__":
    print(*chosen(torch.__version__), sep="\n")
