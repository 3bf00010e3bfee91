"""Weights that a script has kept from before they were spread or cut: which they are now."""

import weakref
from typing import Any, Dict, Iterable, Tuple

from torch import nn


class Former:
    """Remembers which weight has taken the place of which, for as long as the old one is kept by somebody."""

    def __init__(self) -> None:
        self._known: "Dict[int, Tuple[weakref.ref[nn.Parameter], nn.Parameter]]" = {}

    def note(self, pairs: Iterable[Tuple[nn.Parameter, nn.Parameter]]) -> None:
        """Take note of old weights, each with its new one."""
        self._known.update({id(old): (weakref.ref(old), new) for old, new in pairs})

    def present(self, parameter: Any) -> Any:
        """Return a weight as it is now."""
        old, new = self._known.get(id(parameter), (None, parameter))
        return new if old is not None and old() is parameter else parameter
