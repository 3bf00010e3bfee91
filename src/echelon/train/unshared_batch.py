"""Explain why no rank has a part of a batch, with the one reason that applies."""

from typing import NamedTuple, Optional, Set, Tuple

import torch

from .gradient_observers import leaves_of
from .scaling_error import ScalingError

_ONE_RANK = "start one rank: echelon run -n 1 …"
STEP_OF_NO_BATCH = (
    "nothing is shared: the script steps its optimizer without backward(), and takes no batch from a DataLoader with "
    "gradients on; each rank runs the whole script by itself"
)
"""What a person reads of a training of which ranks have no part."""


class Unshared(NamedTuple):
    """A call of a model whose arguments ranks cannot share."""

    model: str
    shape: Optional[Tuple[int, ...]]
    """The shape of its first tensor of numbers; None if it got none."""
    batch_sizes: Set[int]
    """The batch sizes of the loaders whose loops were running."""


def is_batch(tensor: torch.Tensor, batch_sizes: Set[int]) -> bool:
    """Say whether the first dim of a model's argument is the batch: the running loaders decide, or else its kind."""
    if batch_sizes:
        return tensor.size(0) in batch_sizes
    return tensor.dim() > 1 or not tensor.is_floating_point()


def refusal(loss: torch.Tensor, last: Optional[Unshared], num_ranks: int, has_optimizers: bool) -> ScalingError:
    """Return the error for a loss to which all ranks would contribute equally."""
    if not has_optimizers:
        return ScalingError(
            "the script called backward(), but no optimizer of torch.optim has the weights (%s): the script "
            "changes them by hand, and each rank would use the gradient of only its own samples" % _shapes_of(loss),
            "write optimizer = torch.optim.SGD(weights, lr=…) and optimizer.step() in place of w -= lr * "
            "w.grad; or " + _ONE_RANK,
        )
    if last is None:
        return ScalingError(
            "the script called backward(), but called no model: it called forward() directly, or functions "
            "with the weights (%s); every rank would train on the same samples" % _shapes_of(loss),
            "write model(x) in place of model.forward(x), and let a torch.nn.Module have the weights; or " + _ONE_RANK,
        )
    return _of_shape(last, num_ranks)


def _of_shape(last: Unshared, num_ranks: int) -> ScalingError:
    shape = last.shape
    if not shape:
        return ScalingError(
            "the script called backward(), but called %s without a batch: none of its tensors has a batch "
            "dimension, so every rank would train on the same samples" % last.model,
            "call the model with the batch as an argument; or " + _ONE_RANK,
        )
    told = "the script called %s with a tensor of shape %s" % (last.model, shape)
    if shape[0] == 1:
        return ScalingError(
            "the batch has 1 sample, and %d ranks cannot share it: %s" % (num_ranks, told),
            "use a batch of at least %d samples, in the first dim; or %s" % (num_ranks, _ONE_RANK),
        )
    if last.batch_sizes and shape[0] not in last.batch_sizes:
        sizes = " or ".join(map(str, sorted(last.batch_sizes)))
        return ScalingError(
            "%s, but the loader's batches have %s samples: no dim of the tensor is the batch dimension" % (told, sizes),
            "put the samples in the first dim of the model's arguments; or " + _ONE_RANK,
        )
    if len(shape) == 1:
        return ScalingError(
            "%s: this is one sample, and %d ranks cannot share it" % (told, num_ranks),
            "use a batch with the samples in the first dim, x.unsqueeze(0) for a single sample; or " + _ONE_RANK,
        )
    return ScalingError(
        "the batch has %d samples, but %d ranks share it: %s" % (shape[0], num_ranks, told),
        "use a larger batch, or at most %d ranks: echelon run -n %d …" % (shape[0], shape[0]),
    )


def _shapes_of(loss: torch.Tensor) -> str:
    leaves = sorted(leaves_of(loss), key=lambda leaf: -leaf.numel())  # in an order that all ranks and runs share
    shapes = [str(tuple(leaf.shape)) for leaf in leaves]
    more = ", …" if len(shapes) > 3 else ""
    return "of shape %s%s" % (", ".join(shapes[:3]), more) if shapes else "of no shape"
