"""Why no rank has a part of a batch, as the one reason that holds."""

from typing import NamedTuple, Optional, Set, Tuple

import torch

from .refusal import Refusal
from .witnesses import leaves_of

_ONE_RANK = "one rank: echelon run -n 1 …"


class Unshared(NamedTuple):
    """A model that was called with what ranks cannot share."""

    model: str
    shape: Optional[Tuple[int, ...]]
    """Of its first tensor; None: it was given none that is no number."""
    batch_sizes: Set[int]
    """Of the loops over loaders that went on then."""


def refusal(loss: torch.Tensor, last: Optional[Unshared], num_ranks: int, has_optimizers: bool) -> Refusal:
    """Return the refusal of a loss to which all ranks would contribute the same."""
    if not has_optimizers:
        return Refusal(
            "backward() was called, and no optimizer of torch.optim has the weights (%s): the script changes them by "
            "hand, each rank by the gradient of its own samples" % _shapes_of(loss),
            "optimizer = torch.optim.SGD(weights, lr=…) and optimizer.step() in place of w -= lr * w.grad; or "
            + _ONE_RANK,
        )
    if last is None:
        return Refusal(
            "backward() was called, but no model was called: the script called forward() directly, or functions with "
            "the weights (%s); every rank would train on the same samples" % _shapes_of(loss),
            "model(x) in place of model.forward(x), where the model is a torch.nn.Module that has the weights; or "
            + _ONE_RANK,
        )
    return _of_shape(last, num_ranks)


def _of_shape(last: Unshared, num_ranks: int) -> Refusal:
    shape = last.shape
    if not shape:
        return Refusal(
            "backward() was called, and %s was called without a batch: no tensor that it was given has a dim of "
            "samples, so that every rank would train on the same" % last.model,
            "call the model with the batch as an argument; or " + _ONE_RANK,
        )
    told = "%s was called with a tensor of shape %s" % (last.model, shape)
    if shape[0] == 1:
        return Refusal(
            "the batch has 1 sample, and %d ranks cannot share it: %s" % (num_ranks, told),
            "a batch of at least %d samples, in the first dim; or %s" % (num_ranks, _ONE_RANK),
        )
    if last.batch_sizes and shape[0] not in last.batch_sizes:
        sizes = " or ".join(map(str, sorted(last.batch_sizes)))
        return Refusal(
            "%s, and the loader's batches have %s samples: no dim of the tensor is the batch" % (told, sizes),
            "the samples in the first dim of what the model is called with; or " + _ONE_RANK,
        )
    if len(shape) == 1:
        return Refusal(
            "%s: that is one sample, and %d ranks cannot share it" % (told, num_ranks),
            "a batch of samples in the first dim, x.unsqueeze(0) for several; or " + _ONE_RANK,
        )
    return Refusal(
        "the batch has %d samples, and there are %d ranks to share it: %s" % (shape[0], num_ranks, told),
        "a larger batch, or at most %d ranks: echelon run -n %d …" % (shape[0], shape[0]),
    )


def _shapes_of(loss: torch.Tensor) -> str:
    leaves = sorted(leaves_of(loss), key=lambda leaf: -leaf.numel())  # in an order that all ranks and runs share
    shapes = [str(tuple(leaf.shape)) for leaf in leaves]
    more = ", …" if len(shapes) > 3 else ""
    return "of shape %s%s" % (", ".join(shapes[:3]), more) if shapes else "of no shape"
