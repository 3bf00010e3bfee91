"""`pytest --changed-since=REVISION`: the tests of the modules that have changed, and of those that import them.

A file of tests is chosen if it has changed, or if it imports, through other files of tests too, a module that has
changed or one that imports such a module. What tests start by its command line they do not import: STARTED says in
which folders the commands and ranks of each of these rooms are tested. What is no module stands in OTHERS.
"""

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALWAYS = ("tests/test_house.py",)
STARTED = {
    "trials": ("trials",), "jobs": ("slurm",), "dialects": ("dialects", "frameworks"),
    "checks": ("checks",), "lint": ("lint",), "machines": ("machines",), "monitor": ("monitor",),
    "plan": ("plan",), "estimate": ("estimate",), "topology": ("topology", "run"), "script": ("script",),
    "scheduler": ("slurm", "run/test_hosts.py"), "cli": ("run", "test_docs.py"),
    "launch": ("run", "faults", "slurm", "dialects"),
    "node": ("run", "faults", "sampling", "test_parity.py"), "environment": ("run", "dialects"),
    "hardware": ("topology", "sampling", "checks"),
    "host": ("run",), "checkpoint": ("checkpoint", "train/checkpoints", "corpus/test_resume.py"), "train": ("corpus",),
    "notebook": ("notebook",), "tracing": ("train/fitting",), "bandwidth": ("checks",), "pytorch": ("pytorch",),
}  # fmt: skip
"""Folders and files of tests for each room of src/echelon."""
OTHERS = {
    "docs": ("test_docs.py", "test_site.py", "test_pictures.py"), "examples": ("test_examples.py", "test_docs.py"),
    "packaging": ("test_packaging.py", "test_pyz.py", "test_package.py"), "pyproject.toml": ("test_package.py",),
    "README.md": ("test_docs.py",), "CONTRIBUTING.md": ("test_docs.py",), "benchmarks": ("test_benchmarks_scale.py",),
}  # fmt: skip
"""Folders and files of tests for each folder or file of the repository."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer --changed-since."""
    parser.addoption("--changed-since", metavar="REVISION", help="only tests of what differs from a revision of git")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files of tests that nothing of the change concerns, before they are imported."""
    revision = config.getoption("changed_since")
    if not revision or not collection_path.is_file() or not collection_path.name.startswith("test_"):
        return None
    return True if str(collection_path.relative_to(ROOT)) not in chosen(revision) else None


@functools.cache
def chosen(revision: str) -> frozenset[str]:
    """Return the files of tests that a change since a revision concerns."""
    changed = [
        Path(line) for line in _git("diff", "--name-only", revision) + _git("ls-files", "-o", "--exclude-standard")
    ]
    every = {str(path.relative_to(ROOT)): path for path in (ROOT / "tests").rglob("test_*.py")}
    modules = _affected(
        {_module(path) for path in changed if path.parts[:2] == ("src", "echelon") and path.suffix == ".py"}
    )
    modules |= {_module(path) for path in changed if path.parts[0] == "tests" and path.suffix == ".py"}
    rooms = {module.split(".")[1] for module in modules if module.startswith("echelon.")}
    rooms -= set() if any("cli" in path.parts for path in changed) else {"cli"}  # it imports every room
    prefixes = tuple(f"tests/{place}" for path in changed for place in _places(path))
    prefixes += tuple(f"tests/{place}" for room in rooms for place in STARTED.get(room, ()))
    return frozenset(
        name
        for name, path in every.items()
        if name in ALWAYS or name.startswith(prefixes) or not modules.isdisjoint(_imported_by(path))
    )


def _git(*words: str) -> list[str]:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "src" else parts).removesuffix(".__init__")


def _affected(modules: set[str]) -> set[str]:
    """Return modules with all of the house that import them."""
    import grimp

    graph = grimp.build_graph("echelon", cache_dir=None)
    return modules | {found for module in modules & graph.modules for found in graph.find_downstream_modules(module)}


def _places(path: Path) -> tuple[str, ...]:
    """Return where the tests of a file are that is no module of the house."""
    if path.name == "conftest.py":
        return (str(path.parent.relative_to("tests")).removeprefix("."),)
    if path.parts[0] == "tests":
        return () if path.suffix == ".py" else (str(path.parent.relative_to("tests")),)  # what its tests read
    return OTHERS.get(path.parts[0], ())


@functools.cache
def _imported_by(path: Path) -> frozenset[str]:
    """Return the modules of the house and of the tests that a file of tests imports, itself and through others."""
    found = {_module(path.relative_to(ROOT))}
    waiting = [path]
    while waiting:
        for name in _imports(waiting.pop()):
            if name not in found and name.split(".")[0] in ("echelon", "tests", "benchmarks"):
                found.add(name)
                other = ROOT / f"{name.replace('.', '/')}.py"
                waiting += [other] if other.exists() else []
    return frozenset(found)


@functools.cache
def _imports(path: Path) -> frozenset[str]:
    package = _module(path.relative_to(ROOT)).split(".")
    return frozenset(name for node in ast.walk(ast.parse(path.read_text())) for name in _names(node, package))


def _names(node: ast.AST, importer: list[str]) -> Iterator[str]:
    """Yield what a statement of a module may import: `from a import b` is a, and perhaps a.b."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = importer[: len(importer) - node.level] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        yield source
        yield from (f"{source}.{alias.name}" for alias in node.names)
