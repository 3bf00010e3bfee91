"""Plain tensors that show elements of a view, such as one row of a batch, made by a function that has no rule.

On one device who writes to the row writes to the batch. Here the row is of a whole that was put together, so what is
written there is carried over to the batch before that is used again; the other way round is refused.
"""

from contextlib import contextmanager
from typing import Any, Iterator, List, NamedTuple, Tuple

import torch

from ..scaling_error import ScalingError
from .tensors import GlobalTensor, tensors_of, version_of


class _Alias(NamedTuple):
    view: GlobalTensor
    whole: torch.Tensor
    version: int
    """Of the whole, when its elements were last those of the view."""
    own_versions: Tuple[int, ...]
    """Of what this process holds of the view, then."""


_known: List[_Alias] = []


def note(tensor: GlobalTensor, whole: torch.Tensor, result: Any) -> None:
    """Remember a whole if a result shows its elements."""
    is_known = any(known.whole is whole for known in _known)
    if not is_known and any(_storage_of(one) == _storage_of(whole) for one in tensors_of(result)):
        _known.append(_Alias(tensor, whole, version_of(whole), tensor.versions()))


def whole_of(tensor: GlobalTensor) -> torch.Tensor:
    """Return a view whole: the whole whose parts are kept already, so that all parts show the same elements."""
    needs_gradient = torch.is_grad_enabled() and tensor.requires_grad
    for known in _known:
        if known.view is tensor and known.whole.requires_grad == needs_gradient:
            return known.whole
    return tensor.whole()


def settle() -> None:
    """Carry over to views what was written to their elements, and forget the wholes that nobody has any more."""
    if not _known:
        return
    pending, _known[:] = list(_known), []
    for tensor, whole, version, own_versions in pending:
        if tensor.versions() != own_versions and _is_kept(whole):
            raise ScalingError(
                "the script changes a batch of shape %s in place, and keeps a view of its elements, such as a "
                "row; the ranks share the batch, so the view would not change" % (tuple(tensor.shape),),
                "keep a copy (row = batch[0].clone()), or start one rank: echelon run -n 1 …",
            )
        if version_of(whole) != version:
            with _mode_of(whole):
                tensor.put_whole(whole)
        if _is_kept(whole):
            _known.append(_Alias(tensor, whole, version_of(whole), tensor.versions()))


@contextmanager
def _mode_of(whole: torch.Tensor) -> Iterator[None]:
    """Record gradients as when the whole was made: a view may be used next where none are recorded."""
    with torch.inference_mode(whole.is_inference()), torch.set_grad_enabled(whole.requires_grad):
        yield


def _is_kept(whole: torch.Tensor) -> bool:
    return torch._C._storage_Use_Count(whole.untyped_storage()._cdata) > 2  # more than this tensor, and the storage


def _storage_of(tensor: torch.Tensor) -> int:
    """Return where the elements lie; of what has no place of its own, a number that no other has."""
    is_plain = not isinstance(tensor, GlobalTensor) and tensor.layout == torch.strided and not tensor.is_meta
    return tensor.untyped_storage().data_ptr() or id(tensor) if is_plain else id(tensor)
