"""What is replaced is replaced wherever a module holds it by name, whenever that was imported; nothing else is."""

import importlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests import warm

from echelon.train import patches


def first(path: str) -> str:
    return path


def second(path: str) -> str:
    return path


@pytest.fixture(autouse=True)
def modules_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin with an empty table; leave sys.modules, the finders and what was looked through as they were."""
    kept, finders = dict(sys.modules), list(sys.meta_path)
    monkeypatch.setattr(patches, "_namespaces", [])
    monkeypatch.setattr(patches, "_held", [])
    monkeypatch.setattr(patches, "_table", [])
    yield
    patches.undo()
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
    hooks = patches.Hooks()
    hooks.replace("home", "first", lambda original: lambda path: "new " + original(path), why="a test")
    hooks.apply()
    return sys.modules["home"].first


def test_names_in_modules_before_and_after_a_look() -> None:
    """A fork that looks again sees what came since; a name that stands for something else stays."""
    home = imported("home", first=first)
    before = imported("before", alias=first, other=second)
    patches.look_through()
    num_looked = len(patches._namespaces)
    after = imported("after", first=first)
    new = replaced()
    assert len(patches._namespaces) == num_looked + 1
    assert home.first is before.alias is after.first is new
    assert new("x") == "new x"
    assert before.other is second


@pytest.mark.parametrize("name", ["early", "latest"])
def test_module_that_was_imported_anew(name: str) -> None:
    """One that was looked through, taken out and imported again is another module; the old one is followed too."""
    imported("home", first=first)
    olds = [imported(one, held=first) for one in ("early", "latest")]
    patches.look_through()
    again = imported(name, held=first)
    new = replaced()
    assert again.held is new
    assert [old.held for old in olds] == [new, new]


def test_name_that_came_to_stand_for_something_else() -> None:
    """What a module held when it was looked through, and holds no more, is left alone."""
    imported("home", first=first)
    changed = imported("changed", held=first)
    patches.look_through()
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


class Original:
    """What is replaced in these tests."""

    @staticmethod
    def still() -> str:
        return "still"

    @classmethod
    def named(cls) -> str:
        return cls.__name__

    @property
    def size(self) -> int:
        return 1


class Heir(Original):
    """Has all its names from its parent."""


def put(owner: Any, attribute: Any, new: Any) -> patches.Patch:
    return patches.replace(owner, attribute, new, why="a test")


def around(word: str, inner: Any) -> Any:
    return lambda path: f"{word} {inner(path)}"


def stacked(home: ModuleType) -> list[patches.Patch]:
    """Put three patches on one name, each around what it finds."""
    return [put(home, "first", around(word, home.first)) for word in "abc"]


def test_the_last_patch_of_a_name_is_called_first() -> None:
    """Patches of one name stack, and undo() takes them all off."""
    home = imported("home", first=first)
    stacked(home)
    assert home.first("x") == "c b a x"
    assert [row.name for row in patches.rows()] == ["home.first"] * 3
    patches.undo()
    assert home.first is first
    assert patches.rows() == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_undone_in_any_order(order: tuple[int, ...]) -> None:
    """Whichever patch is undone first, those that stand on top of it stay; after the last, the original is back."""
    home = imported("home", first=first)
    placed = stacked(home)
    for number, place in enumerate(order):
        placed[place].undo()
        placed[place].undo()  # once more is no harm
        left = set(range(3)) - set(order[: number + 1])
        assert home.first is (placed[max(left)].new if left else first)
    assert patches.rows() == []


def test_what_the_script_put_on_top_stays() -> None:
    """A name that the script has replaced after echelon is the script's: an undo does not take it away."""
    home = imported("home", first=first)
    ours = put(home, "first", around("ours", first))
    home.first = theirs = around("theirs", home.first)  # type: ignore[attr-defined]
    ours.undo()
    assert home.first is theirs


@pytest.mark.parametrize("name", ["still", "named", "size"])
@pytest.mark.parametrize("owner", [Original, Heir])
def test_descriptors_and_inherited_names(owner: type, name: str) -> None:
    """A static method, a class method and a property come back as they were; a class that inherited them inherits."""
    before = dict(vars(owner))
    put(owner, name, staticmethod(lambda: "new"))
    assert vars(owner)[name].__func__() == "new"
    patches.undo()
    assert dict(vars(owner)) == before


def test_entries_of_dicts_and_properties_of_objects() -> None:
    """An entry that was there comes back, one that was not is removed, and a property is set through its setter."""

    class Setting:
        value = 1
        on = property(lambda self: self.value, lambda self, value: setattr(self, "value", value))

    table, setting = {"a": 1}, Setting()
    patches.replace(table, "a", 2, why="a test", name="table[a]")
    patches.replace(table, "b", 3, why="a test", name="table[b]")
    put(setting, "on", 4)
    assert (table, setting.value) == ({"a": 2, "b": 3}, 4)
    assert [row.name for row in patches.rows()][:2] == ["table[a]", "table[b]"]
    patches.undo()
    assert (table, setting.value) == ({"a": 1}, 1)


def test_blocks_and_toggles() -> None:
    """A block puts back what it found, also after an error; a patch that is off is not put back by its undo."""
    home = imported("home", first=first)
    patch = put(home, "first", second)
    leave, enter = patch.toggles()
    with pytest.raises(KeyError), patches.replaced(home, "first", str.upper, why="a test"):
        assert [row.when for row in patches.rows()] == [patches.AT_ONCE, patches.FOR_A_BLOCK]
        raise KeyError
    assert home.first is second
    leave()
    assert home.first is first
    enter()
    with patches.replaced(home, "first", str.lower, why="a test"):  # one above it leaves, and comes back
        leave()
        leave()
        assert home.first is first
        enter()
        assert home.first is first
        enter()
        assert home.first is str.lower
    with patches.set_aside([patch]), patches.set_aside([patch]):  # one inside of another
        assert home.first is first
    assert home.first is second
    leave()
    patch.undo()
    assert home.first is first


def test_names_that_modules_hold_come_back() -> None:
    """Modules that held a function by name hold it again, and a library that is imported later is left alone."""
    original = first  # this module holds first() by name too
    home, holder = imported("home", first=first), imported("holder", alias=first)
    replaced()
    hooks = patches.Hooks()
    hooks.replace("wave", "open", lambda _: second, why="a test")
    assert holder.alias is home.first is not original
    assert [(row.name, row.when) for row in patches.rows()][-1] == ("wave.open", "when wave is imported")
    patches.undo()
    assert holder.alias is home.first is first is original
    sys.modules.pop("wave", None)
    wave = importlib.import_module("wave")
    assert wave.open is not second


def test_library_that_is_imported_later() -> None:
    """Its functions are replaced at its import, and the table says so."""
    sys.modules.pop("wave", None)
    patches.Hooks().replace("wave", "open", lambda _: lambda: "new", why="a test")
    wave = importlib.import_module("wave")
    assert wave.open() == "new"
    row = patches.rows()[-1]
    assert (row.name, row.by, row.when) == ("wave.open", __name__, "when wave is imported")
    patches.undo()
    assert wave.open is wave.Wave_read or wave.open.__module__ == "wave"


WHOLE = """
import builtins, importlib, json, os, pkgutil, sys, types
import torch, torch.distributed.tensor, torch.distributed.fsdp, torch.distributed.tensor.experimental

def classes(module):
    return [value for value in list(vars(module).values()) if isinstance(value, type)]

def state():
    found = {}
    for module in [one for one in list(sys.modules.values()) if isinstance(one, types.ModuleType)]:
        if module.__name__.partition(".")[0] in ("echelon", "__main__", "tests"):
            continue
        for owner in (module, *classes(module)):
            found[id(owner)] = (owner, dict(vars(owner)))
    for owner in ("callbacks", "meta_path"):
        found[owner] = owner, {"all": list(getattr(__import__({"callbacks": "gc", "meta_path": "sys"}[owner]), owner))}
    return found

CACHES = ("__abstractmethods__", "_abc_impl", "__warningregistry__", "__annotations__", "__path__", "next_id")

def differences(before, after):
    told = []
    for key, (owner, content) in before.items():
        now = after.get(key, (None, {}))[1]
        for name in {*content, *now}:
            one, other = content.get(name, "absent"), now.get(name, "absent")
            is_import = isinstance(other, types.ModuleType) or name in CACHES
            is_same = one is other or (isinstance(one, (list, int)) and one == other)
            if not is_same and not is_import:
                told.append(f"{getattr(owner, '__module__', '')}.{getattr(owner, '__name__', owner)}.{name}")
    return sorted(told)
"""
UNDONE = (
    WHOLE
    + """
import echelon.train.start as start
from echelon.orders.scale import ScaleOptions
from echelon.train import patches
for name in ("strategies.optimizers", "strategies.dropout", "strategies.attention"):
    importlib.import_module("echelon.train." + name)
importlib.import_module("echelon.train.model_parallel.hooks")
os.environ.update(RANK=sys.argv[2], LOCAL_RANK="0", WORLD_SIZE="2")
before = state()
start.start_hooked(ScaleOptions.from_json(sys.argv[1]))
installed = differences(before, state())
names = {row.name for row in patches.rows()}
patches.undo()
print(json.dumps([len(installed), len(names), len(patches.rows()), differences(before, state())]), flush=True)
os._exit(0)
"""
)


@pytest.mark.parametrize(
    ("rank", "options"),
    [
        (0, {"syncs_batch_norm": True, "keeps_batch": True, "draws_all": True}), (1, {"how": "fsdp", "num_shards": 4}),
        (0, {"how": "tensor"}), (1, {"how": "context"}), (0, {"how": "pipeline"}), (1, {"steps_alone": 8}),
    ],
    ids=str,
)  # fmt: skip
def test_all_that_scaling_replaces_is_put_back(tmp_path: Path, rank: int, options: dict[str, Any]) -> None:
    """After undo() every module and class of Python and PyTorch is what it was before the real hooks: the table is
    whole, and nothing of it is lost."""
    (tmp_path / "undone.py").write_text(UNDONE)
    done = warm.run(["undone.py", json.dumps(options), str(rank)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    num_changed, num_names, num_left, differences = json.loads(done.stdout)
    assert num_changed > 100 < num_names
    assert (num_left, differences) == (0, [])


CALLED = """
import inspect, json, os, sys
import echelon.train.start as start
from echelon.orders.scale import ScaleOptions
from echelon.train import patches

NAMED = ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")

def parameters(function):
    return inspect.signature(getattr(function, "__func__", function), follow_wrapped=False).parameters

def below(patch):
    if patch._below is not patches._ABSENT:
        return patch._below
    return next(vars(kind)[patch.attribute] for kind in patch.owner.__mro__[1:] if patch.attribute in vars(kind))

def differences(patch):
    try:
        old, new = parameters(below(patch)), parameters(patch.new)
    except (TypeError, ValueError, StopIteration, AttributeError):
        return []  # no function, or one of C without a signature
    kinds = {parameter.kind for parameter in new.values()}
    named = [name for name, parameter in new.items() if parameter.kind.name in NAMED]
    wanted = [name for name, parameter in old.items() if parameter.kind.name in NAMED]
    takes_any = any(parameter.kind.name == "VAR_KEYWORD" for parameter in old.values())
    skipped = isinstance(patch.owner, type)  # self
    strange = [] if takes_any else [name for name in named[skipped:] if name not in old]
    lacking = [name for name in wanted[skipped:] if name not in new and inspect.Parameter.VAR_KEYWORD not in kinds]
    return strange + lacking

os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2")
start.start_hooked(ScaleOptions.from_json(sys.argv[1]))
table = [patch for patch in patches._table if isinstance(patch, patches.Patch)]
print(json.dumps([len(table), {patch.row().name: names for patch in table if (names := differences(patch))}]))
sys.stdout.flush()
os._exit(0)
"""
BY_POSITION = {"sys.excepthook", "torch.Tensor.__format__"}
"""What Python calls by position alone."""


@pytest.mark.parametrize(
    "options",
    [
        {"syncs_batch_norm": True, "keeps_batch": True, "draws_all": True}, {"how": "fsdp", "num_shards": 4},
        {"how": "tensor"}, {"how": "context"}, {"how": "pipeline"}, {"steps_alone": 8},
    ],
    ids=str,
)  # fmt: skip
def test_what_takes_a_place_takes_the_same_arguments(tmp_path: Path, options: dict[str, Any]) -> None:
    """A script may give each argument by its name, as PyTorch has it: load_state_dict(state_dict=...)."""
    (tmp_path / "called.py").write_text(CALLED)
    done = warm.run(["called.py", json.dumps(options)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    number, strange = json.loads(done.stdout)
    assert number > 100
    assert strange.keys() <= BY_POSITION


IMPORTED = (
    WHOLE
    + """
before = state()
import echelon.train
names = [one.name for one in pkgutil.walk_packages(echelon.train.__path__, "echelon.train.")]
for name in names:
    importlib.import_module(name)
from echelon.train import patches
print(json.dumps([len(names), patches.rows(), differences(before, state())]))
"""
)


def test_an_import_replaces_nothing(tmp_path: Path) -> None:
    """Every module of echelon.train can be imported, in the order of the tree, and Python and PyTorch stay as they
    are."""
    (tmp_path / "imported.py").write_text(IMPORTED)
    done = warm.run(["imported.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    num_modules, rows, differences = json.loads(done.stdout)
    assert num_modules > 100
    assert (rows, differences) == ([], [])
