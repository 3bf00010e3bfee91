"""The gradients of weights, whole or sharded over the ranks, that one virtual shard after the other computes."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Set

import torch
from torch import nn

from ...pytorch import distributed
from ..gather import is_sharded, whole
from ..scaling_error import as_of_library


class Weights:
    """Take the gradients of one backward pass out of the parameters, and put their sums in."""

    def __init__(self, parameters: Sequence[nn.Parameter], roots: Sequence[nn.Module] = ()) -> None:
        self.parameters = parameters
        self._spread = _unsharded(roots)
        self._before: List[Optional[torch.Tensor]] = []
        self._sparse: Set[int] = set()
        self._rows = [own_rows(one) if is_sharded(one) else None for one in parameters]
        self.likes = [_like(one) for one in parameters]
        """Tensors with the shapes and dtypes of whole gradients."""

    def set_aside(self) -> None:
        """Keep the gradients of earlier passes, and clear the parameters' gradients."""
        self._before = [one.grad for one in self.parameters]
        self.take()

    def take(self) -> List[Optional[torch.Tensor]]:
        """Return the gradients of a pass, and clear the parameters' gradients."""
        gradients = []
        for parameter in self.parameters:
            group = self._spread.get(id(parameter))
            gradient = parameter.grad if group is None else distributed.take_whole_gradient(group)
            if gradient is not None and gradient.is_sparse:
                self._sparse.add(id(parameter))
                gradient = gradient.to_dense()  # rows that several shards touch are added in the tree's order
            gradients.append(gradient)
            parameter.grad = None
        return gradients

    def pass_whole(self, run: Callable[[], None]) -> None:
        """Run a pass that is the same on all ranks, and add its gradients to those of earlier passes."""
        self.set_aside()
        run()
        for parameter, old in zip(self.parameters, self._before):  # noqa: B905
            new: Any = parameter.grad
            if new is not None and is_sharded(new):  # its placement may differ from the parameter's
                new = new.redistribute(new.device_mesh, parameter.placements)  # type: ignore[attr-defined]
            parameter.grad = new if old is None else old if new is None else old.add_(new)

    def put(self, sums: Sequence[Optional[torch.Tensor]]) -> List[bool]:
        """Add whole gradients to those set aside; return for each weight whether none was set aside."""
        for parameter, rows, old, new in zip(self.parameters, self._rows, self._before, sums):  # noqa: B905
            part = new if new is None or rows is None else _own_part(new, parameter, rows)
            if part is not None and id(parameter) in self._sparse:
                part = part.to_sparse(1)
            parameter.grad = part if old is None else old if part is None else old.add_(part)
        return [old is None for old in self._before]


def _like(parameter: Any) -> torch.Tensor:
    if not is_sharded(parameter):
        return parameter.detach()  # type: ignore[no-any-return]
    return torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)


def _unsharded(roots: Sequence[nn.Module]) -> Dict[int, Any]:
    """Return fully_shard's own record of each weight, by the identity of the parameter that a rank keeps.

    Gradient synchronisation is turned off, so a pass leaves whole gradients in the record
    (FSDPParam.unsharded_accumulated_grad).
    """
    records = {}
    for root in roots:
        root.set_requires_gradient_sync(False)  # type: ignore[operator]
        for module in root.modules():
            for record in distributed.fully_sharded_weights(module):
                records[id(record.sharded_param)] = record
    return records


def own_rows(parameter: Any) -> slice:
    """Return the rows of a parameter that this rank keeps."""
    size = parameter.size(0)
    rows = slice(0, size)
    for axis, placement in enumerate(parameter.placements):
        if placement.is_shard():  # otherwise each rank of this axis keeps the same rows
            num_rows = -(-size // parameter.device_mesh.size(axis))  # as Shard(0) cuts; the last ranks may have nothing
            first = min(num_rows * parameter.device_mesh.get_local_rank(axis), size)
            rows = slice(first, min(first + num_rows, size))
    return rows


def _own_part(gradient: torch.Tensor, parameter: Any, rows: slice) -> Any:
    """Return this rank's rows of a whole gradient, as a DTensor with the parameter's placement."""
    from torch.distributed.tensor import DTensor

    local = gradient[rows].to(parameter.device, copy=True)
    # as fully_shard makes them; DTensor.from_local() is slower
    return DTensor(local, parameter._spec, requires_grad=False)  # type: ignore[no-untyped-call]


def clip_by_whole_norm(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, **_foreach: Any
) -> torch.Tensor:
    """Clip as torch.nn.utils.clip_grad_norm_ does, by a norm that does not depend on the sharding of the gradients."""
    parameter_list = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients: List[Any] = [one.grad for one in parameter_list if one.grad is not None]
    norms = [torch.linalg.vector_norm(whole(one), norm_type) for one in gradients]  # gather one gradient at a time
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type) if norms else torch.tensor(0.0)
    if error_if_nonfinite and not bool(torch.isfinite(total)):
        raise as_of_library(RuntimeError("the total norm of order %s for gradients is non-finite" % norm_type))
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    for gradient in gradients:
        local = gradient.to_local() if is_sharded(gradient) else gradient
        local.mul_(factor.to(local.device))
    return total
