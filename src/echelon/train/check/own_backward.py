"""The script's own code in the backward pass of a model must treat each row of the batch by itself, too.

It is in autograd functions of the script, and in hooks of tensors that a model computes. Where a model has one, its
outputs are multiplied by numbers that each row has in the whole batch and in its part: the gradients of the weights
for both parts must add up to those for all rows. On ranks a backward pass begins with larger gradients, which a mean
over the ranks makes small again: so those of the parts begin twice as large, and must be twice as large in the end.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ...pytorch import internals
from .. import patches
from ..global_tensors.returned_numbers import leaves_of
from ..wire import lines
from .part_ways import MEAN, SUM, Sizes, dims_of_rows

_CLOSE, _CLOSE_IN_HALF = 1e-3, 5e-2
"""The share of a gradient that may be rounding."""
_TIMES = 2.0
"""How much larger the gradients of parts begin."""
_WHY = "A model that is tried tells which hooks it gives to the tensors that it computes."


@contextmanager
def hooks_noted(names: list[str]) -> Iterator[None]:
    """Note the lines in which a model gives hooks to tensors that it computes."""
    original: Any = torch.Tensor.register_hook

    def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
        if not tensor.is_leaf and lines.is_of_script(sys._getframe(1)):
            names.append(f"a hook of a gradient, at {lines.of_script()}")
        return original(tensor, hook)

    with patches.replaced(torch.Tensor, "register_hook", register_hook, why=_WHY):
        yield


def functions_of(outputs: object) -> list[str]:
    """Return the script's own autograd functions that a backward pass from these outputs calls."""
    waiting: list[Any] = [one.grad_fn for one in leaves_of(outputs) if isinstance(one, torch.Tensor)]
    seen: set[Any] = set()
    names: dict[str, None] = {}
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)
        function = internals.autograd_function_of(node)
        module = sys.modules.get(function.__module__) if function is not None else None
        path = getattr(module, "__file__", None)
        if function is not None and path is not None and lines.is_file_of_script(path):
            names[f"backward() of {function.__name__}"] = None
    return list(names)


class Projection:
    """A sum of outputs, each multiplied by a number that its row has in each batch."""

    def __init__(self, results: Sequence[Any], sizes: Sizes, numbers: Mapping[int, set[str]]) -> None:
        """Take the outputs for all rows and for both parts; `numbers` are the ways of those that are single."""
        self._every = [leaves_of(one) for one in results]
        self._sizes, self._numbers = sizes, numbers

    def of(self, outputs: object, place: int) -> torch.Tensor | None:
        """Return the sum for outputs with a graph: of all rows (0) or of a part (1, 2); None if there is none."""
        terms = [
            (one * factor).sum()
            for at, one in enumerate(leaves_of(outputs))
            if (factor := self._factor(at, one, place)) is not None
        ]
        times = _TIMES if place else 1.0
        return times * torch.stack([term.double() for term in terms]).sum() if terms else None

    def _factor(self, at: int, output: Any, place: int) -> Any:
        if not isinstance(output, torch.Tensor) or not output.requires_grad or not output.is_floating_point():
            return None
        first, count = self._span(place)
        if at in self._numbers:
            ways = self._numbers[at]
            return count / self._sizes.all_rows if MEAN in ways else 1.0 if SUM in ways else None
        three = [one[at] for one in self._every]
        dims = dims_of_rows(three, self._sizes) if len({one.dim() for one in three}) == 1 else []
        if not dims:
            return None
        (dim, ratio), whole = dims[0], three[0]
        factors = torch.arange(whole.numel(), device=whole.device, dtype=torch.float32).cos().view(whole.shape)
        factors = factors.div_(whole.size(dim)).narrow(dim, first * ratio, count * ratio)
        return factors.to(output.dtype) if factors.shape == output.shape else None

    def _span(self, place: int) -> tuple[int, int]:
        """Return the first row, and the number of rows."""
        sizes = self._sizes
        return ((0, sizes.all_rows), (0, sizes.first), (sizes.first, sizes.rest))[place]


def gradients(total: torch.Tensor | None, weights: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradients of weights; none where PyTorch cannot compute them here, as with reentrant checkpoints."""
    wanted = [one for one in weights if one.requires_grad]
    if total is None or not wanted:
        return []
    try:
        return list(torch.autograd.grad(total, wanted, allow_unused=True))
    except Exception:  # noqa: BLE001  (the script's own code may raise anything; its own backward() raises it again)
        return []


def add_up(whole: Sequence[Any], first: Sequence[Any], rest: Sequence[Any]) -> bool:
    """Say whether the gradients of both parts add up to those of all rows, or nothing can be said."""
    if not len(whole) == len(first) == len(rest):
        return True
    for three in zip(whole, first, rest, strict=True):
        if any(one is None or one.layout != torch.strided for one in three):
            continue
        of_all, *parts = (one.double() / times for one, times in zip(three, (1.0, _TIMES, _TIMES), strict=True))
        close = _CLOSE_IN_HALF if three[0].dtype in (torch.half, torch.bfloat16) else _CLOSE
        size = max(float(one.norm()) for one in (of_all, *parts))
        if float((of_all - parts[0] - parts[1]).norm()) > close * size + 1e-12:
            return False
    return True
