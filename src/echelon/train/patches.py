"""The table of all replacements in PyTorch, Python and libraries, with the module and the reason of each.

Several patches of one name stack: each calls what it found, so the last installed is called first. Undoing puts back
what was there before, in any order. `echelon run --explain-hooks` prints the table.
"""

import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any, NamedTuple

Do = Callable[[], Any]
OnImport = Callable[[Any], None]
AT_ONCE, FOR_A_BLOCK = "at once", "for the duration of a block"
_ABSENT = object()
"""The value of an absent name: a class inherits the name, or nobody has it."""
_NOT_CAPTURED = ("posix", "nt", "_io")  # the import system itself uses these
_ROOM = __name__.rpartition(".")[0] + "."
_INSIDE = (__name__, "contextlib")


class PatchRow(NamedTuple):
    """A patch, as a person reads it."""

    name: str
    """The name that is replaced: "torch.Tensor.backward"."""
    by: str
    """The module of ours that replaces it: "global_tensors.losses"."""
    when: str
    why: str


class _Entry:
    def __init__(self, name: str, why: str, by: str = "", when: str = "") -> None:
        self._name, self.why = name, why
        self.by = by or _caller()
        self.when = when or (_on_import(_finder.completing[-1]) if _finder.completing else AT_ONCE)

    def row(self) -> PatchRow:
        return PatchRow(self._name, self.by, self.when, self.why)

    @property
    def is_installed(self) -> bool:
        """Whether nobody has undone it."""
        return self in _table

    def _leave_table(self) -> bool:
        """Remove this row from the table; return whether it was there."""
        if _table and _table[-1] is self:  # a block that ends
            _table.pop()
        elif self in _table:
            _table.remove(self)
        else:
            return False
        return True


class Patch(_Entry):
    def __init__(self, owner: object, attribute: object, new: object, **about: str) -> None:
        super().__init__(about.pop("name", ""), **about)
        self.owner, self.attribute, self.new = owner, attribute, new
        self._below = _present(owner, attribute)
        self.original: Any = None
        """The value before the patch in modules that import the name."""
        self.holders: list[tuple[dict[str, Any], str]] = []

    def row(self) -> PatchRow:
        """Return the row for a person, and look up the name only now."""
        self._name = self._name or f"{_name_of(self.owner)}.{self.attribute}"
        return super().row()

    def toggles(self) -> tuple[Do, Do]:
        """Return functions that remove the patch with those above it, and put back what was there; pairs may nest."""
        removed: list[Any] = []

        def leave() -> None:
            removed.append(_present(self.owner, self.attribute))
            _assignment(self.owner, self.attribute, self._below)()

        def enter() -> None:
            _assignment(self.owner, self.attribute, removed.pop())()

        return leave, enter

    def undo(self) -> None:
        """Restore the value before this patch; a later patch, ours or the script's, stays and calls this value."""
        later = _table[_table.index(self) + 1 :] if _table and _table[-1] is not self and self in _table else ()
        if not self._leave_table():
            return
        above = next((one for one in later if isinstance(one, Patch) and one._replaces_same(self)), None)
        if above is not None:
            above._below, above.original = self._below, self.original
        elif _present(self.owner, self.attribute) is self.new:
            _assignment(self.owner, self.attribute, self._below)()
        for namespace, key in self.holders:
            if namespace.get(key) is self.new:
                namespace[key] = self.original

    def _replaces_same(self, patch: "Patch") -> bool:
        return self.owner is patch.owner and self.attribute == patch.attribute


class Hook(_Entry):
    def __init__(self, name: str, remove: Do, why: str) -> None:
        super().__init__(name, why)
        self._remove = remove

    def undo(self) -> None:
        if self._leave_table():
            self._remove()


_table: list[Any] = []


def replace(owner: object, attribute: object, new: object, *, why: str, name: str = "") -> Patch:
    """Replace an attribute, or an entry of a dict, for which `name` must be a readable name."""
    patch = Patch(owner, attribute, new, why=why, name=name)
    _put(patch)
    return patch


@contextmanager
def replaced(owner: object, attribute: object, new: object, *, why: str, name: str = "") -> Iterator[None]:
    """Replace an attribute, or an entry of a dict, for the duration of a block."""
    patch = Patch(owner, attribute, new, why=why, name=name, when=FOR_A_BLOCK)
    _put(patch)
    try:
        yield
    finally:
        patch.undo()


@contextmanager
def set_aside(patches: Iterable[Patch]) -> Iterator[None]:
    """Restore, for the duration of a block, the values before these patches."""
    with ExitStack() as stack:
        for patch in reversed(list(patches)):
            now = _present(patch.owner, patch.attribute)
            if now is not patch._below:  # a block around this one has set it aside
                stack.callback(_assignment(patch.owner, patch.attribute, now))
                _assignment(patch.owner, patch.attribute, patch._below)()
        yield


def hook(
    register: Callable[[Any], Any], function: object, *, why: str, name: str = "", remove: Do | None = None
) -> Hook:
    """Register a function with PyTorch or Python; the returned handle or `remove` removes it."""
    handle = register(function)
    entry = Hook(name or f"{register.__module__}.{register.__qualname__}", remove or handle.remove, why)
    _table.append(entry)
    return entry


def is_replaced(owner: object, attribute: str) -> bool:
    return any(isinstance(one, Patch) and one.owner is owner and one.attribute == attribute for one in _table)


def of(owner: object) -> list[Patch]:
    return [one for one in _table if isinstance(one, Patch) and one.owner is owner]


def rows() -> list[PatchRow]:
    """Return the table in the order of installation; at the end, patches that wait for the import of a library."""
    return [entry.row() for entry in _table] + [one.row for waiting in _finder.waiting.values() for one in waiting]


def undo() -> None:
    """Undo all patches, the last one first, and stop waiting for libraries."""
    _finder.waiting.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
    while _table:
        _table[-1].undo()


def _put(patch: Patch) -> None:
    _assignment(patch.owner, patch.attribute, patch.new)()
    _table.append(patch)


def _present(owner: object, attribute: Any) -> object:
    """Return the owner's raw value: a classmethod is not bound, and an inherited name is absent."""
    if isinstance(owner, dict):
        return owner.get(attribute, _ABSENT)
    is_plain = type(owner) is ModuleType or isinstance(owner, type)
    if not is_plain and hasattr(inspect.getattr_static(type(owner), attribute, None), "__set__"):  # a property
        return getattr(owner, attribute)
    return vars(owner).get(attribute, _ABSENT)


def _assignment(owner: object, attribute: Any, value: object) -> Do:
    if isinstance(owner, dict):
        remove, put = partial(owner.pop, attribute, None), partial(owner.__setitem__, attribute, value)
    else:
        remove, put = partial(delattr, owner, attribute), partial(setattr, owner, attribute, value)
    return remove if value is _ABSENT else put


def _name_of(owner: object) -> str:
    """Return a dotted name; a class is named as scripts import it: torch.nn.Module."""
    if isinstance(owner, ModuleType):
        return owner.__name__
    kind = owner if isinstance(owner, type) else type(owner)
    parts = kind.__module__.split(".")
    for end in range(1, len(parts)):
        module = ".".join(parts[:end])
        if _namespace_of(sys.modules.get(module)).get(kind.__qualname__) is kind:
            return f"{module}.{kind.__qualname__}"
    return "{}.{}".format(kind.__module__.replace("_echelon", "echelon", 1), kind.__qualname__)


def _caller() -> str:
    """Return the module of ours that installs a patch."""
    frame: Any = sys._getframe(1)
    while frame.f_globals.get("__name__") in _INSIDE and frame.f_back is not None:
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__"))
    return name[len(_ROOM) :] if name.startswith(_ROOM) else name


_namespaces: list[dict[str, Any]] = []
"""The namespaces of modules that look_through() has seen."""
_held: list[set[int]] = []
"""The ids of the values in each of these namespaces."""


def look_through() -> None:
    """Note the values in modules that were imported since the last call.

    In a forked process, a look at all PyTorch values copies the memory pages that hold them. This takes longer than
    all other work before a script begins. So the warm process looks once, before it forks the ranks.
    """
    ours = __name__.partition(".")[0]  # the whole package: a rank removes the warm process's modules from sys.modules
    fresh: list[dict[str, Any]] = []
    for name, module in reversed(sys.modules.items()):  # the latest first
        namespace = _namespace_of(module)
        if _namespaces and namespace is _namespaces[-1]:
            break
        if name not in _NOT_CAPTURED and name.partition(".")[0] != ours:
            fresh.append(namespace)
    for namespace in reversed(fresh):
        _namespaces.append(namespace)
        _held.append(set(map(id, namespace.values())))


def _namespace_of(module: object) -> dict[str, Any]:
    """Return a module's namespace, without loading a lazy module."""
    try:
        return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return {}


class Hooks:
    """Patches of functions that other modules import by name, and of libraries that the script may import."""

    def __init__(self) -> None:
        self.patches: list[Patch] = []

    def when_imported(self, name: str, act: OnImport, *, why: str, attribute: str = "…") -> None:
        """Call a function with a module now, or after its import."""
        module = sys.modules.get(name)
        if module is not None:
            act(module)
        else:
            _finder.wait(name, _Waiting(act, PatchRow(f"{name}.{attribute}", _caller(), _on_import(name), why)))

    def replace(self, name: str, attribute: str, wrap: Callable[[Any], Any], *, why: str) -> None:
        """Replace a function, or Class.method, of a module that is imported now or later, if the module has it."""
        by = _caller()

        def act(module: object) -> None:
            owner = module
            *classes, last = attribute.split(".")
            for class_name in classes:
                owner = getattr(owner, class_name, None)
            original = getattr(owner, last, None)
            if original is None:
                _refuse_missing(name, attribute)
            else:
                self.put(owner, last, original, wraps(original)(wrap(original)), why=why, by=by)

        self.when_imported(name, act, why=why, attribute=attribute)

    def put(self, owner: object, attribute: str, original: object, new: object, *, why: str, by: str = "") -> None:
        """Set an attribute, and remember its value for the modules that have imported it by name."""
        patch = Patch(owner, attribute, new, why=why, by=by)
        patch.original = original
        _put(patch)
        self.patches.append(patch)

    def apply(self) -> None:
        """Give the replacements to modules that have imported the originals by name."""
        look_through()
        replaced = {id(patch.original): patch for patch in self.patches}
        for place, held in enumerate(_held):
            if not held.isdisjoint(replaced):
                _replace_in(_namespaces[place], replaced)


def _replace_in(namespace: dict[str, Any], patches: dict[int, Patch]) -> None:
    for key, value in list(namespace.items()):
        if id(value) in patches and callable(value):
            patch = patches[id(value)]
            namespace[key] = patch.new
            patch.holders.append((namespace, key))


def _refuse_missing(module: str, attribute: str) -> None:
    """End this process if a module lacks a name that a training needs; the script may catch an exception."""
    from ..pytorch import targets  # tests load this file alone

    changed = targets.error_of_missing(module, attribute)
    if changed is not None:
        targets.end(changed)


class _Waiting(NamedTuple):
    act: OnImport
    row: PatchRow


def _on_import(name: str) -> str:
    return f"when {name} is imported"


class _Finder:
    """Finds no module itself; calls functions with modules after their import by other finders' loaders."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[_Waiting]] = {}
        self.completing: list[str] = []
        """The modules whose functions are running now."""

    def wait(self, name: str, waiting: _Waiting) -> None:
        """Watch imports from now on."""
        self.waiting.setdefault(name, []).append(waiting)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of another finder, whose loader then calls the waiting functions."""
        if name not in self.waiting:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None:
                if spec.loader is not None:  # else it is a folder without __init__.py
                    self._follow(name, spec.loader)
                return spec
        return None

    def _follow(self, name: str, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: object) -> None:
            original(module)
            self.completing.append(name)
            try:
                for entry in self.waiting.pop(name, []):
                    entry.act(module)
            finally:
                self.completing.pop()

        loader.exec_module = exec_module


_finder = _Finder()
