"""Plain tensors that share elements with a global tensor, such as one row of a batch, from functions without a rule.

On one device a script that writes to the row writes to the batch. Here the row belongs to a whole tensor that was
gathered. So echelon copies a change of the row to the batch before the batch is used again. It refuses a change of the
batch while the script keeps such a row.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ...pytorch import internals
from ..scaling_error import ScalingError
from ..wire import messages, world
from .tensors import GlobalTensor, tensors_of, version_of


class _Alias(NamedTuple):
    view: GlobalTensor
    whole: torch.Tensor
    version: int
    """The version of the whole tensor when its elements last equalled those of the global tensor."""
    own_versions: tuple[int, ...]
    """The versions of this process's part of the global tensor at that time."""


MOST_NEW, MOST_NEW_BYTES = 16, 64 * 1024**2
"""How many wholes more are remembered, used or not, until the ranks agree on those that a script still uses."""
_known: list[_Alias] = []
_num_agreed = [0]


def note(tensor: GlobalTensor, whole: torch.Tensor, result: object) -> None:
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


def copy_changes() -> None:
    """Copy changes of remembered wholes to their global tensors, and forget the wholes that nobody uses any more."""
    if not _known:
        return
    pending, _known[:] = list(_known), []
    for tensor, whole, version, own_versions in pending:
        is_changed = tensor.versions() != own_versions
        if is_changed and _is_kept_by_script(whole):
            raise ScalingError(
                f"the script changes a batch of shape {tuple(tensor.shape)} in place, and keeps a view of "
                "its elements, such as a "
                "row; the ranks share the batch, so the view would not change",
                "keep a copy (row = batch[0].clone()), or start one rank: echelon run -n 1 …",
            )
        if version_of(whole) != version:
            with _mode_of(whole):
                tensor.put_whole(whole)
        if not is_changed:
            _known.append(_Alias(tensor, whole, version_of(whole), tensor.versions()))
    _forget_unused()


def _forget_unused() -> None:
    """Forget the wholes that no rank uses: a rank that has forgotten a whole would wait for others that have not."""
    _num_agreed[0] = min(_num_agreed[0], len(_known))
    new = [known.whole for known in _known[_num_agreed[0] :]]
    if world.is_alone() or (len(new) < MOST_NEW and sum(one.nbytes for one in new) < MOST_NEW_BYTES):
        return
    every = messages.gather([_is_kept(known.whole) for known in _known])
    _known[:] = [known for known, uses in zip(_known, zip(*every, strict=False), strict=False) if any(uses)]
    _num_agreed[0] = len(_known)


@contextmanager
def _mode_of(whole: torch.Tensor) -> Iterator[None]:
    """Set the gradient mode under which the whole was made: the present mode may be another one."""
    with torch.inference_mode(whole.is_inference()), torch.set_grad_enabled(whole.requires_grad):
        yield


def _is_kept(whole: torch.Tensor) -> bool:
    return internals.num_storage_users(whole) > 2  # more than this tensor, and the storage


def _is_kept_by_script(whole: torch.Tensor) -> bool:
    """Say whether the script keeps a view of a whole; garbage in a cycle may keep one for a while."""
    if _is_kept(whole):
        gc.collect()
    return _is_kept(whole)


def _storage_of(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage; return a unique number for a tensor that has no storage."""
    is_plain = not isinstance(tensor, GlobalTensor) and tensor.layout == torch.strided and not tensor.is_meta
    return tensor.untyped_storage().data_ptr() or id(tensor) if is_plain else id(tensor)
