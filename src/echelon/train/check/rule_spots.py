"""At a spot, compare the values of rules, which compute with parts, with those of the whole."""

from typing import Any, Callable, Optional

import torch

from .. import patches
from ..global_tensors import pieces, rules
from ..global_tensors.elements import is_in_place
from ..global_tensors.tensors import GlobalTensor, plain, tensors_of
from ..rng.generators import Generators
from ..scaling_error import ScalingError
from . import lines
from .closeness import difference_of

MOST_RULES = 64
"""Rules that are compared in a step."""


class RuleSpots:
    """Lets views be computed twice while a spot lasts: by their rules, and from the whole."""

    def __init__(self, generators: Generators) -> None:
        self._generators = generators
        self._original: Callable[..., Any] = rules.apply
        self._patch: Optional[patches.Patch] = None
        self._left = 0
        self._is_busy = False
        self.difference = ""
        """Where, and which function."""

    def begin(self) -> None:
        """Compare from now on."""
        self._left, self.difference = MOST_RULES, ""
        self._original = GlobalTensor.rule
        why = "At a spot check, what is computed with parts is compared with the whole."
        self._patch = patches.replace(GlobalTensor, "rule", staticmethod(self._apply), why=why)

    def end(self) -> None:
        """Compare no more."""
        if self._patch is not None:
            self._patch.undo()

    def _apply(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = getattr(func, "__name__", "")
        is_left_out = not self._left or is_in_place(name) or not rules.has_rule(func, kwargs)
        if self._is_busy or is_left_out or pieces.first_of(args, kwargs) is not None:
            return self._original(func, args, kwargs)
        self._left -= 1
        self._is_busy = True
        try:
            return self._compare(func, name, args, kwargs)
        finally:
            self._is_busy = False

    def _compare(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        try:
            whole_args, whole_kwargs = plain((args, kwargs))
        except ScalingError as refusal:  # of all ranks: their parts do not fit together
            refusal.withdraw()
            return self._original(func, args, kwargs)
        with self._generators.kept(), torch.no_grad():
            try:
                whole = func(*whole_args, **whole_kwargs)
            except (RuntimeError, ValueError, LookupError, TypeError):
                return self._original(func, args, kwargs)  # the script's own error, or one that says more
        result = self._original(func, args, kwargs)
        if not any(isinstance(one, GlobalTensor) for one in tensors_of(result)):
            return result
        difference = difference_of(plain(result), whole)
        if difference is not None and not self.difference:
            self.difference = "%s: %s of the ranks' rows differs from the whole batch: %s %s" % (
                lines.of_script(), name, difference.what, difference.how,
            )  # fmt: skip
        return result
