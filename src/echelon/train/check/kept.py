"""What the code of models may change besides weights, and how it is put back after a model was computed again."""

import itertools
import sys
from collections import OrderedDict, deque
from typing import Any, Dict, List, Optional, Sequence, Tuple

from torch import nn

from . import lines

MOST_KEPT, MOST_ENTRIES = 10_000, 1_000
"""The most objects whose contents are kept, and the most entries of each that are looked at."""
_CONTAINERS = (list, OrderedDict, dict, set, deque)
"""The classes whose own methods copy and fill; an OrderedDict has an order beside that of dict."""


class Kept:
    """The attributes of models, the global names of the script's files with their classes, and what these hold.

    These hold lists, dicts, sets, and instances of the script's classes, also within each other. The numbers of tensors
    in them are not kept.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        spaces = {type(one).__module__: vars(sys.modules[type(one).__module__]) for one in modules if _is_own(one)}
        self._attributes = [(one, dict(vars(one))) for one in modules]
        self._names = [(space, dict(space)) for space in spaces.values()]
        self._contents: Dict[int, Tuple[Any, Any]] = {}
        for _, values in (*self._attributes, *self._names):
            for value in values.values():
                self._keep(value)

    def _keep(self, value: Any) -> None:
        if id(value) in self._contents or len(self._contents) == MOST_KEPT:
            return
        if _base(value) is None:
            if isinstance(value, (nn.Module, type)) or not _is_own(value) or not hasattr(value, "__dict__"):
                return
            value = vars(value)
        self._contents[id(value)] = value, _content(value)
        entries = value.values() if isinstance(value, dict) else value
        for entry in list(itertools.islice(entries, MOST_ENTRIES)):
            self._keep(entry)

    def put_back(self) -> None:
        """Undo every change."""
        for module, attributes in self._attributes:
            vars(module).clear()
            vars(module).update(attributes)
        for space, names in self._names:  # they are never empty meanwhile, for other threads use them
            for name in [name for name in space if name not in names]:
                del space[name]
            space.update(names)
        for value, content in self._contents.values():
            if _entries(_content(value)) != _entries(content):
                _fill(value, content)


def _is_own(value: Any) -> bool:
    """Say whether the class of a value belongs to a file of the script."""
    module = sys.modules.get(type(value).__module__)
    path = getattr(module, "__file__", None)
    return path is not None and lines.is_file_of_script(path)


def _base(value: Any) -> Optional[type]:
    return next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)


def _content(value: Any) -> Any:
    """Return a copy of a container, by the methods of Python's own class."""
    kind: Any = _base(value)
    return kind.copy(value)


def _entries(content: Any) -> List[int]:
    """Return the identities of the entries, in their order."""
    flat = itertools.chain.from_iterable(content.items()) if isinstance(content, dict) else content
    return [id(entry) for entry in flat]


def _fill(value: Any, content: Any) -> None:
    kind: Any = _base(value)
    kind.clear(value)
    (kind.extend if kind in (list, deque) else kind.update)(value, content)
