"""torch.compile in a trace: the model as it is, because a compiler needs values and takes minutes."""

from typing import Any, Callable, List

import torch

from .. import patches

_WHY = "A compiler would run a training that is only traced."
_NOTE = "torch.compile was left out: the peak is that of the model as it is written"


class Compiling:
    """Leaves out compilation, and tells so."""

    def __init__(self) -> None:
        self._is_asked = False

    def install(self) -> None:
        """Replace torch.compile."""
        patches.replace(torch, "compile", self._compile, why=_WHY)

    def notes(self) -> List[str]:
        """Return a sentence if the script compiles."""
        return [_NOTE] if self._is_asked else []

    def _compile(self, model: Any = None, **_: Any) -> Any:
        self._is_asked = True
        as_it_is: Callable[[Any], Any] = lambda function: function  # noqa: E731  (the decorator's other form)
        return as_it_is if model is None else model
