"""Replace functions of modules: those that are imported already now, the others when the script imports them."""

import functools
import importlib.machinery
import sys
from typing import Any, Callable, Dict, List, Optional

OnImport = Callable[[Any], None]
_NOT_CAPTURED = ("posix", "nt", "_io")  # what the import system itself uses


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
        ours = __name__.rsplit(".", 2)[0]
        for name, module in list(sys.modules.items()):
            if name in _NOT_CAPTURED or name.startswith(ours):
                continue
            namespace = getattr(module, "__dict__", {})
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
