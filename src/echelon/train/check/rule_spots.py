"""At a spot, compare the results of rules, which compute with parts, with results from whole tensors."""

from collections.abc import Callable

import torch

from .. import patches
from ..global_tensors import pieces, rules
from ..global_tensors.elements import is_in_place
from ..global_tensors.tensors import GlobalTensor, plain, tensors_of
from ..rng.generators import Generators
from ..scaling_error import ScalingError
from ..wire import lines
from .closeness import difference_of

MOST_RULES = 64
"""The most rules that are compared in a step."""


class RuleSpots:
    """Computes global tensors twice during a spot: by their rules, and from whole tensors."""

    def __init__(self, generators: Generators) -> None:
        self._generators = generators
        self._original: Callable[..., object] = rules.apply
        self._patch: patches.Patch | None = None
        self._left = 0
        self._is_busy = False
        self.difference = ""
        """The line and the function of the first difference; empty if there is none."""

    def begin(self) -> None:
        """Begin to compare."""
        self._left, self.difference = MOST_RULES, ""
        self._original = GlobalTensor.rule
        why = "At a spot check, what is computed with parts is compared with the whole."
        self._patch = patches.replace(GlobalTensor, "rule", staticmethod(self._apply), why=why)

    def end(self) -> None:
        """End the comparison."""
        if self._patch is not None:
            self._patch.undo()

    def _apply(self, func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
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

    def _compare(self, func: Callable[..., object], name: str, args: object, kwargs: object) -> object:
        try:
            whole_args, whole_kwargs = plain((args, kwargs))
        except ScalingError as refusal:  # on all ranks: their parts do not fit together
            refusal.withdraw()
            return self._original(func, args, kwargs)
        with self._generators.kept(), torch.no_grad():
            try:
                whole = func(*whole_args, **whole_kwargs)
            except (RuntimeError, ValueError, LookupError, TypeError):
                return self._original(func, args, kwargs)  # which raises the script's own error, or a clearer one
        result = self._original(func, args, kwargs)
        if not any(isinstance(one, GlobalTensor) for one in tensors_of(result)):
            return result
        difference = difference_of(plain(result), whole)
        if difference is not None and not self.difference:
            self.difference = (f"{lines.of_script()}: {name} of the ranks' rows differs from the whole batch: "
            f"{difference.what} {difference.how}")  # fmt: skip
        return result
