"""The examples in docstrings run, and show what is written there."""

import doctest
import importlib
from pathlib import Path

import pytest
from tests import warm

SOURCE = Path(__file__).parent.parent / "src"
WITH_EXAMPLES = sorted(path for path in SOURCE.rglob("*.py") if "    >>> " in path.read_text())


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=module_name)
def test_an_example_shows_what_is_written(path: Path, tmp_path: Path) -> None:
    """Each example in a module's docstrings gives the result that stands below it."""
    name = module_name(path)
    if "echelon.start()" in path.read_text():  # an example begins a run, which lasts as long as its process
        code = f"import doctest, sys, {name} as module; sys.exit(doctest.testmod(module).failed)"
        (tmp_path / "example.py").write_text(code)
        finished = warm.run(["example.py"], cwd=tmp_path)
        assert finished.returncode == 0, finished.stdout + finished.stderr
    else:
        assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_public_functions_have_examples() -> None:
    """Docstrings of the package itself, which every user may call, hold an example."""
    assert "echelon" in map(module_name, WITH_EXAMPLES)
