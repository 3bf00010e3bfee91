"""Plain tensors that share elements with a global tensor, such as one row of a batch, from functions without a rule.

On one device a script that writes to the row writes to the batch. Here the row belongs to a whole tensor that was
gathered. So echelon copies a change of the row to the batch before the batch is used again. It refuses a change of the
batch while the script keeps such a row.
"""

from contextlib import contextmanager
from typing import Any, Iterator, List, NamedTuple, Tuple

import torch

from ...pytorch import internals
from ..scaling_error import ScalingError
from .tensors import GlobalTensor, tensors_of, version_of


class _Alias(NamedTuple):
    view: GlobalTensor
    whole: torch.Tensor
    version: int
    """The version of the whole tensor when its elements last equalled those of the global tensor."""
    own_versions: Tuple[int, ...]
    """The versions of this process's part of the global tensor at that time."""


_known: List[_Alias] = []


def note(tensor: GlobalTensor, whole: torch.Tensor, result: Any) -> None:
    """Remember a whole tensor if a result shares its elements."""
    is_known = any(known.whole is whole for known in _known)
    if not is_known and any(_storage_of(one) == _storage_of(whole) for one in tensors_of(result)):
        _known.append(_Alias(tensor, whole, version_of(whole), tensor.versions()))


def whole_of(tensor: GlobalTensor) -> torch.Tensor:
    """Return the whole of a global tensor; reuse a whole that is remembered, so that all rows share its elements."""
    needs_gradient = torch.is_grad_enabled() and tensor.requires_grad
    for known in _known:
        if known.view is tensor and known.whole.requires_grad == needs_gradient:
            return known.whole
    return tensor.whole()


def settle() -> None:
    """Copy changes of remembered wholes to their global tensors, and forget the wholes that nobody uses any more."""
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
    """Set the gradient mode under which the whole was made: the present mode may be another one."""
    with torch.inference_mode(whole.is_inference()), torch.set_grad_enabled(whole.requires_grad):
        yield


def _is_kept(whole: torch.Tensor) -> bool:
    return internals.num_storage_users(whole) > 2  # more than this tensor, and the storage


def _storage_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; return a unique number for a tensor that has no storage."""
    is_plain = not isinstance(tensor, GlobalTensor) and tensor.layout == torch.strided and not tensor.is_meta
    return tensor.untyped_storage().data_ptr() or id(tensor) if is_plain else id(tensor)
