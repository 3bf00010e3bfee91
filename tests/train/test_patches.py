"""What is replaced is replaced wherever a module holds it by name, whenever that was imported; nothing else is."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from echelon.train.files import imports


def first(path: str) -> str:
    return path


def second(path: str) -> str:
    return path


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave sys.modules, the finders and what was looked through as they were."""
    kept, finders = dict(sys.modules), list(sys.meta_path)
    monkeypatch.setattr(imports, "_namespaces", [])
    monkeypatch.setattr(imports, "_held", [])
    yield
    for name in sys.modules.keys() - kept.keys():
        del sys.modules[name]
    sys.meta_path[:] = finders


def imported(name: str, **content: Any) -> ModuleType:
    """Import a module with this content."""
    module = ModuleType(name)
    vars(module).update(content)
    sys.modules.pop(name, None)
    sys.modules[name] = module
    return module


def replaced() -> Any:
    """Replace first() of the module "home", and return what took its place."""
    hooks = imports.Hooks()
    hooks.replace("home", "first", lambda original: lambda path: "new " + original(path))
    hooks.apply()
    return sys.modules["home"].first


def test_names_in_modules_before_and_after_a_look() -> None:
    """A fork that looks again sees what came since; a name that stands for something else stays."""
    home = imported("home", first=first)
    before = imported("before", alias=first, other=second)
    imports.look_through()
    num_looked = len(imports._namespaces)
    after = imported("after", first=first)
    new = replaced()
    assert len(imports._namespaces) == num_looked + 1
    assert home.first is before.alias is after.first is new
    assert new("x") == "new x"
    assert before.other is second


@pytest.mark.parametrize("name", ["early", "latest"])
def test_module_that_was_imported_anew(name: str) -> None:
    """One that was looked through, taken out and imported again is another module; the old one is followed too."""
    imported("home", first=first)
    olds = [imported(one, held=first) for one in ("early", "latest")]
    imports.look_through()
    again = imported(name, held=first)
    new = replaced()
    assert again.held is new
    assert [old.held for old in olds] == [new, new]


def test_name_that_came_to_stand_for_something_else() -> None:
    """What a module held when it was looked through, and holds no more, is left alone."""
    imported("home", first=first)
    changed = imported("changed", held=first)
    imports.look_through()
    changed.held = second  # type: ignore[attr-defined]
    replaced()
    assert changed.held is second


def test_lazy_module_is_not_woken() -> None:
    """Only what is there is looked at: a module that is loaded when it is asked stays unloaded."""

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    sys.modules["lazy"] = Lazy("lazy")
    sys.modules["none"] = None  # type: ignore[assignment]
    imported("home", first=first)
    replaced()
