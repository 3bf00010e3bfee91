"""A placeholder for a weight that another rank holds: it has the shape of the weight, and no numbers."""

import sys
from typing import Any

import torch
from torch import nn

from ...pytorch import internals
from ..function_types import Args
from ..scaling_error import ScalingError

_TELLS_NOTHING = ("detach", "alias")
_PASS_BY = ("torch", "echelon", "_echelon")
_GRAD: Any = internals.TensorBase.grad
_CHANGES = ("copy_", "zero_", "fill_")


class AbsentWeight(torch.Tensor):
    """Accepts writes and keeps nothing; a read raises a ScalingError."""

    called: str
    in_step = False
    """Whether an optimizer steps now; an optimizer skips a weight without a gradient."""
    shown: torch.Tensor | None
    """The weight itself, while all ranks share their weights with each other."""

    @staticmethod
    def __new__(cls: object, like: torch.Tensor, name: str) -> "AbsentWeight":
        self: AbsentWeight = internals.wrapper_of(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=like.device
        )
        self.called, self.shown = name, None
        return self

    __torch_function__ = internals.no_torch_function

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: object, args: Args = (), kwargs: object = None) -> object:  # type: ignore[override]
        weight = next((one for one in args if isinstance(one, AbsentWeight)), None)
        word = func.overloadpacket.__name__
        if weight is not None and word in _TELLS_NOTHING:
            if weight.shown is not None:
                return weight.shown.detach()
            return AbsentWeight(weight, weight.called)
        if weight is not None and word in _CHANGES and args[0] is weight:
            return weight
        raise ScalingError(
            "the script reads {}, a weight of a layer on another rank ({})".format(
                weight.called if weight is not None else "a list of weights", word
            ),
            "use model.state_dict(), which is whole; or --scale tensor, or " + WITH_THE_BATCH,
        )

    @property
    def grad(self) -> torch.Tensor | None:
        """Return the gradient while it is shared; otherwise PyTorch's code gets None, and a script gets an error."""
        gradient: torch.Tensor | None = _GRAD.__get__(self)
        asker = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
        if gradient is None and not AbsentWeight.in_step and asker not in _PASS_BY:
            raise ScalingError(
                f"the script reads the gradient of {self.called}, a weight of a layer on another rank",
                "use torch.nn.utils.clip_grad_norm_ and get_total_norm, which include all ranks; or --scale "
                "tensor, or " + WITH_THE_BATCH,
            )
        return gradient

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        _GRAD.__set__(self, value)

    def full_tensor(self) -> torch.Tensor:
        return self.shown if self.shown is not None else self

    def __repr__(self, *_args: object, **_kwargs: object) -> str:  # type: ignore[override]
        return f"{self.called}, of shape {tuple(self.shape)}, is on another rank"


def stand_in(parameter: nn.Parameter, name: str) -> nn.Parameter:
    made: Any = AbsentWeight(parameter, name)
    made.requires_grad_(parameter.requires_grad)
    internals.mark_as_parameter(made)
    return made  # type: ignore[no-any-return]


WITH_THE_BATCH = "echelon run --scale data …, or --scale fsdp"
WITH_SEEDS = (
    "draw all random numbers with torch, numpy.random or random, or with a generator that has a seed "
    "(numpy.random.default_rng(0)); or " + WITH_THE_BATCH
)
