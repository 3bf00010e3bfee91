"""Replace functions of modules: those that are imported already now, the others when the script imports them."""

import functools
import importlib.machinery
import sys
from typing import Any, Callable, Dict, List, Optional, Set

OnImport = Callable[[Any], None]
_NOT_CAPTURED = ("posix", "nt", "_io")  # what the import system itself uses
_namespaces: List[Dict[str, Any]] = []
"""Those of modules that were looked through."""
_held: List[Set[int]] = []
"""The ids of what each of them holds."""


def look_through() -> None:
    """Note what is held by modules that were imported since the last look.

    A look at all that PyTorch holds copies, in a process that was forked, every page it is on, which takes longer than
    all else before a script begins. So the process that ranks are forks of looks first, once for all of them.
    """
    ours = __name__.partition(".")[0]  # all of it: a rank takes what only its warm process needs out of sys.modules
    fresh: List[Dict[str, Any]] = []
    for name, module in reversed(sys.modules.items()):  # the latest first
        namespace = _namespace_of(module)
        if _namespaces and namespace is _namespaces[-1]:
            break
        if name not in _NOT_CAPTURED and name.partition(".")[0] != ours:
            fresh.append(namespace)
    for namespace in reversed(fresh):
        _namespaces.append(namespace)
        _held.append(set(map(id, namespace.values())))


def _namespace_of(module: Any) -> Dict[str, Any]:
    """Return what a module holds, and do not wake one that is to be loaded when it is asked."""
    try:
        return object.__getattribute__(module, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:
        return {}


class Hooks:
    """What is to be replaced, and where it was taken from before."""

    def __init__(self) -> None:
        self._finder = _Finder()
        self._replaced: Dict[int, Any] = {}
        self._originals: List[Any] = []  # they must live, or their ids would mean something else

    def when_imported(self, name: str, act: OnImport) -> None:
        """Act on a module at once when it is there, or when it will have been imported."""
        module = sys.modules.get(name)
        if module is not None:
            act(module)
        else:
            self._finder.acts.setdefault(name, []).append(act)

    def replace(self, name: str, attribute: str, wrap: Callable[[Any], Any]) -> None:
        """Replace a function, or Class.method, of a module that is imported now or later; not if it has none."""

        def act(module: Any) -> None:
            owner = module
            *classes, last = attribute.split(".")
            for each in classes:
                owner = getattr(owner, each, None)
            original = getattr(owner, last, None)
            if original is not None:
                self.put(owner, last, original, functools.wraps(original)(wrap(original)))

        self.when_imported(name, act)

    def put(self, owner: Any, attribute: str, original: Any, new: Any) -> None:
        """Set an attribute, and remember what it was for those who took it from there."""
        setattr(owner, attribute, new)
        self._replaced[id(original)] = new
        self._originals.append(original)

    def apply(self) -> None:
        """Begin to watch imports; give what was replaced to modules that were imported before and hold it by name."""
        sys.meta_path.insert(0, self._finder)
        look_through()
        replaced = set(self._replaced)
        for place, held in enumerate(_held):
            if not held.isdisjoint(replaced):
                self._replace_in(_namespaces[place])

    def _replace_in(self, namespace: Dict[str, Any]) -> None:
        for key, value in list(namespace.items()):
            if id(value) in self._replaced and callable(value):
                namespace[key] = self._replaced[id(value)]


class _Finder:
    """Finds nothing itself; lets the loaders that others find act on a module when it is complete."""

    def __init__(self) -> None:
        self.acts: Dict[str, List[OnImport]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        """Return what the other finders find, with what is to be done afterwards."""
        if name not in self.acts:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None:
                self._follow(name, spec.loader)
                return spec
        return None

    def _follow(self, name: str, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: Any) -> None:
            original(module)
            for act in self.acts.pop(name, []):
                act(module)

        loader.exec_module = exec_module
