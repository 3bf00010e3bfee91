"""Global tensors in PyTorch's inner functions, below `__torch_function__`, where no rule was asked.

Old constructors (`Variable(x)`, `torch.FloatTensor(x)`) and functions that libraries wrote in C++ end here. Where no
gradient has to pass, the function computes with the local part, or with the whole tensor.
"""

from typing import Any

import torch

from ...pytorch import internals
from .. import patches
from ..function_types import Args, Function, Kwargs
from ..scaling_error import ScalingError
from .elements import like
from .pieces import Pieces
from .tensors import GlobalTensor, Partial, map_tensors, tensors_of

_KEEPING = ("aten::detach", "aten::alias", "aten::lift_fresh")


def apply(func: Function, args: Args, kwargs: Kwargs) -> object:
    """Compute an inner function of PyTorch that has a global tensor among its arguments."""
    name = internals.schema_of(func).name
    global_tensors = [one for one in tensors_of(args, kwargs) if isinstance(one, GlobalTensor)]
    if name == _KEEPING[0]:
        return global_tensors[0].detach()
    if any(_has_gradient(one) for one in global_tensors):
        raise ScalingError(
            "the script gives a batch of shape {} to {}; echelon cannot follow the batch through this "
            "function, and the batch needs a gradient".format(
                tuple(global_tensors[0].shape), name.replace("aten::", "torch's ")
            ),
            "move this line into the forward() of the model, where the batch is a plain tensor of this rank's "
            "samples; or start one rank: echelon run -n 1 …",
        )
    if name in _KEEPING and len(global_tensors) == 1 and not isinstance(global_tensors[0], (Partial, Pieces)):
        return like(global_tensors[0], func(global_tensors[0].local, *args[1:], **kwargs))
    with torch.no_grad():
        whole = map_tensors((args, kwargs), lambda one: one.whole() if isinstance(one, GlobalTensor) else one)
        result = func(*whole[0], **whole[1])
    if args and isinstance(args[0], GlobalTensor) and result is whole[0][0]:  # in place
        args[0].put_whole(result)
        return args[0]
    return result


def _has_gradient(tensor: GlobalTensor) -> bool:
    return torch.is_grad_enabled() and tensor.requires_grad


def install() -> None:
    """Let `Variable(x)`, which scripts of PyTorch 0.3 call, detach a global tensor as it detaches any tensor."""
    variable: object = torch.autograd.Variable
    if isinstance(vars(variable).get("__new__"), staticmethod):
        return
    original: Function = variable.__new__

    def new(cls: object, data: object = None, requires_grad: bool = False, *args: object, **kwargs: object) -> Any:
        if not isinstance(data, GlobalTensor):
            if data is None:
                return original(cls, *args, **kwargs)
            return original(cls, data, requires_grad, *args, **kwargs)
        result = data.detach()
        return result.requires_grad_() if requires_grad else result

    why = "Variable(x) detaches a batch that is shared among the ranks."
    patches.replace(variable, "__new__", staticmethod(new), why=why)
