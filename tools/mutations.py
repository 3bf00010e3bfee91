"""Whether the tests find mistakes: put small ones into src, one after the other, and run the tests that reach them.

    python tools/mutations.py list                      print the mutations
    python tools/mutations.py probe COPY                have the suite of a copy note which test reaches which mutation
    python tools/mutations.py judge COPY [--tier TIER]  run these tests with each mutation

--only src/echelon/orders --count 10 takes fewer mutations, of some files alone, with each of the three.

COPY is a clone of this repository with an environment in COPY/.venv. After `probe`, a run of COPY's suite writes
COPY/reached.txt, and `git checkout src` in COPY takes the probes out again. `judge` runs the tests of a tier that reach
a mutation, those of the quickest files first and at most --seconds, and appends a line to COPY/judged-TIER.txt.
"""

import argparse
import ast
import json
import os
import random
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SEED = 42
NUM_MUTATIONS = 40
AT_ONCE = 100
"""Tests of one start of pytest."""
OPPOSITE = {
    ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
PROBE = (
    "(lambda x,o,s: (k:=({index},e:=o.environ._data.get(b'PYTEST_CURRENT_TEST',b'?'),x.getpid())) in s or (s.add(k),"
    "x.write(f:=x.open({path!r},x.O_WRONLY|x.O_APPEND|x.O_CREAT,0o666),b'{index}\\t'+e+b'\\n'),x.close(f)))("
    "__import__('posix'),__import__('os'),__import__('builtins').__dict__.setdefault('_reached',set()))"
)
"""A line of Python that imports nothing of ours, which ranks lack, and calls no function that echelon replaces."""


class Mutation(NamedTuple):
    """One small mistake: what stands in these columns of a line, and what is put there instead."""

    path: str
    line: int
    start: int
    old: str
    new: str

    @property
    def room(self) -> str:
        """The package below src/echelon, or the module."""
        return Path(self.path).parts[2]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.old} -> {self.new}"


def choose(root: Path, count: int, only: Sequence[str], seed: int = SEED) -> list[Mutation]:
    """Return mutations of all rooms: one of each, the others by the number of places that a room has."""
    found: dict[str, list[Mutation]] = defaultdict(list)
    for path in sorted((root / "src").rglob("*.py")):
        name = str(path.relative_to(root))
        for mutation in _of_file(path.read_text(), name) if name.startswith(tuple(only)) else ():
            found[mutation.room].append(mutation)
    draw = random.Random(seed)
    chosen = [draw.choice(found[room]) for room in sorted(found)][:count]
    rest = [mutation for room in sorted(found) for mutation in found[room] if mutation not in chosen]
    return sorted(chosen + draw.sample(rest, count - len(chosen)))


def _of_file(text: str, name: str) -> Iterator[Mutation]:
    lines = text.splitlines()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    statements = {
        node: None
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }  # one that stands in an inner function is met twice
    for statement in statements:
        line = lines[statement.lineno - 1]
        if line.isascii() and not line[: statement.col_offset].strip() and not line.lstrip().startswith("elif "):
            for start, old, new in _changes(statement, line):
                yield Mutation(name, statement.lineno, start, old, new)


def _changes(statement: ast.stmt, line: str) -> Iterator[tuple[int, str, str]]:
    """Yield column, old text and new text of what can be changed in the first line of a statement."""
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    if statement.end_lineno == statement.lineno and (is_call or isinstance(statement, ast.AugAssign)):
        yield statement.col_offset, line[statement.col_offset :], "pass"
    heads = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.expr)]
    for node in (node for head in heads for node in ast.walk(head)):
        if getattr(node, "lineno", 0) != statement.lineno or getattr(node, "end_lineno", 0) != statement.lineno:
            continue
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            start = node.left.end_col_offset or 0
            between = line[start : node.comparators[0].col_offset]
            operator = between.strip(" ()")
            yield start + between.index(operator), operator, OPPOSITE[type(node.ops[0])]
        elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            new = str(not node.value) if isinstance(node.value, bool) else repr(node.value + 1)
            yield node.col_offset, line[node.col_offset : node.end_col_offset], new


def mutate(root: Path, mutation: Mutation) -> None:
    """Write one mutation into a copy."""
    path = root / mutation.path
    lines = path.read_text().splitlines(keepends=True)
    line = lines[mutation.line - 1]
    lines[mutation.line - 1] = line[: mutation.start] + mutation.new + line[mutation.start + len(mutation.old) :]
    path.write_text("".join(lines))


def probe(root: Path, mutations: Sequence[Mutation]) -> None:
    """Write a probe before the statement of each mutation."""
    reached = str((root / "reached.txt").resolve())
    for index, mutation in reversed(list(enumerate(mutations))):  # from the last line of a file to its first
        path = root / mutation.path
        lines = path.read_text().splitlines(keepends=True)
        line = lines[mutation.line - 1]
        indent = line[: len(line) - len(line.lstrip())]
        lines.insert(mutation.line - 1, indent + PROBE.format(index=index, path=reached) + "\n")
        path.write_text("".join(lines))


def judge(root: Path, mutations: Sequence[Mutation], tier: str, seconds: float) -> None:
    """Say of each mutation whether the tests of a tier find it."""
    num_found = 0
    for index, mutation in enumerate(mutations):
        tests = _tests(root, index)
        mutate(root, mutation)
        try:
            failed, spent = _first_failure(root, tests, tier, seconds)
        finally:
            subprocess.run(["git", "checkout", "--quiet", mutation.path], cwd=root, check=True)
        is_found = (
            bool(failed) and not _first_failure(root, [failed], tier, seconds)[0]
        )  # it passes without the mutation
        num_found += is_found
        verdict = f"found by {failed}" if is_found else "not found" + (f" ({failed} fails anyway)" if failed else "")
        line = f"{index}\t{mutation}\t{verdict}\t{len(tests)} tests, {spent:.0f} s"
        print(line, flush=True)
        with (root / f"judged-{tier}.txt").open("a") as file:
            file.write(line + "\n")
    print(f"{num_found} of {len(mutations)} found")


def _tests(root: Path, index: int) -> list[str]:
    """Return the tests that reach a mutation, those of the quickest files first."""
    rows = [line.split("\t") for line in (root / "reached.txt").read_text().splitlines()]
    tests = sorted({test.rpartition(" (")[0] for number, test in rows if number == str(index) and "::" in test})
    seconds = json.loads((root / "tests" / "seconds.json").read_text())
    return sorted(tests, key=lambda test: seconds.get(test.partition("::")[0], 0.0))


def _first_failure(root: Path, tests: Sequence[str], tier: str, seconds: float) -> tuple[str, float]:
    """Return the first test that fails, empty if none does in this time, and the seconds that were spent."""
    begin = time.monotonic()
    for start in range(0, len(tests), AT_ONCE):
        left = seconds - (time.monotonic() - begin)
        if left <= 0:
            break
        # a file that changes within a second, and keeps its size, would be read from what was compiled before
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [".venv/bin/python", "-m", "pytest", "-x", "-rfE", f"--tier={tier}", *tests[start : start + AT_ONCE]]
        try:
            done = subprocess.run(
                command, cwd=root, env=environ, capture_output=True, text=True, timeout=left, check=False
            )
        except subprocess.TimeoutExpired:
            break
        failed = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if failed:
            return failed[1], time.monotonic() - begin
    return "", time.monotonic() - begin


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["list", "probe", "judge"])
    parser.add_argument("copy", type=Path, nargs="?", default=Path())
    parser.add_argument("--tier", default="test")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--count", type=int, default=NUM_MUTATIONS)
    parser.add_argument("--only", action="append", metavar="PATH", help="a file or folder, as often as wanted")
    options = parser.parse_args()
    mutations = choose(options.copy, options.count, options.only or ["src"])
    if options.task == "list":
        print(*mutations, sep="\n")
    elif options.task == "probe":
        probe(options.copy, mutations)
    else:
        judge(options.copy, mutations, options.tier, options.seconds)


if __name__ == "__main__":
    main()
