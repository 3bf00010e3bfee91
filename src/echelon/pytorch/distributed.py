"""The door to private names of torch.distributed and of its wrappers, as `internals` is for all others."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

PrefixStore: Any = getattr(dist, "PrefixStore", None)
GradBucket: Any = getattr(dist, "GradBucket", None)  # public names that the types of PyTorch lack


def default_store() -> Any:
    """Return the store by which the ranks of torch.distributed met."""
    return dist.distributed_c10d._get_default_store()


def groups() -> list[Any]:
    return list(dist.distributed_c10d._world.pg_map)


def num_collectives(group: Any) -> int:
    """Return how many collectives this rank has begun in a group; 0 for a backend that does not count."""
    return int(getattr(group, "_get_sequence_number_for_group", int)())


def local_part(tensor: Any) -> torch.Tensor:
    """Return the part of a DTensor that this rank holds, outside of the graph."""
    return tensor._local_tensor  # type: ignore[no-any-return]


def part_of(shape: torch.Size, mesh: Any, placements: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and the offset of this rank's part of a DTensor."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(shape, mesh, placements)


def dtensor_dispatcher() -> Any:
    """Return what runs operations on DTensors."""
    from torch.distributed.tensor import DTensor

    return DTensor._op_dispatcher


PLAIN_IS_REPLICATED = "_allow_implicit_replication"
"""The attribute of dtensor_dispatcher() that lets plain tensors among DTensors count as replicated."""


def dtensor_handlers() -> dict[Any, Any]:
    """Return the functions that run single operations on DTensors in their own way."""
    return dtensor_dispatcher()._custom_op_handlers  # type: ignore[no-any-return]


def places_keywords() -> bool:
    """Say whether register_sharding() wants placements for tensors among the keywords too: from 2.10 on."""
    from torch.distributed.tensor._op_schema import OpSchema

    return hasattr(OpSchema, "kwargs_strategy")


def checkpointed(module: nn.Module, **settings: Any) -> nn.Module:
    """Return a module that computes its activations again in backward."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    return checkpoint_wrapper(module, **settings)


SYNC_OF_STATES = "_sync_module_states"
"""The function of torch.nn.parallel.distributed by which DDP broadcasts weights, where it has no `init_sync`."""


def refuse_unfinished(wrapped: Any) -> None:
    """Raise a RuntimeError if DDP waits for gradients of parameters that backward() has left out."""
    wrapped.reducer._check_reducer_finalized()


def is_in_forward(root: Any) -> Callable[[], bool]:
    """Return a function that says whether fully_shard's forward() of a module is running."""
    state = root._get_fsdp_state()
    return lambda: state._training_state.name == "FORWARD"


def fully_sharded_weights(module: nn.Module) -> tuple[Any, ...]:
    get_state = getattr(module, "_get_fsdp_state", None)
    group = get_state()._fsdp_param_group if get_state is not None else None
    return tuple(group.fsdp_params) if group is not None else ()


def take_whole_gradient(record: Any) -> torch.Tensor | None:
    """Take the whole gradient out of fully_shard's record of a weight."""
    weight = getattr(record, "_unsharded_param", None)
    gradient: torch.Tensor | None = record.unsharded_accumulated_grad
    if isinstance(getattr(type(record), "unsharded_accumulated_grad", None), property):  # from 2.15 on the weight's own
        is_own = True
    else:
        is_own = gradient is None
        record.unsharded_accumulated_grad = None
    if is_own and weight is not None:
        gradient, weight.grad = weight.grad, None
    return gradient


FLAT_NAME = "_flat_param"  # the name of FullyShardedDataParallel's flat parameter (FSDP1)


def flat_handle(module: nn.Module) -> Any:
    """Return FSDP1's record of a module's flat parameter; None for other modules."""
    handle = getattr(module, "_handle", None)
    is_flat = getattr(handle, "flat_param", None) is not None and type(module).__name__ == "FullyShardedDataParallel"
    return handle if is_flat else None


def flat_contents(flat: Any) -> tuple[list[str], list[tuple[int, ...]], list[Any] | None]:
    """Return names, shapes and, with use_orig_params, the parameters of what a flat parameter joins."""
    return [str(name) for name in flat._fqns], [tuple(shape) for shape in flat._shapes], flat._params


class StageRepairs:
    """Repairs two methods that a stage of torch.distributed.pipelining calls before its first batch."""

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        """Clear autocast's cache, which would keep casts without gradients: so PyTorch 2.9 computes shapes."""
        try:
            return super()._prepare_forward_infra(*args, **kwargs)  # type: ignore[misc]
        finally:
            torch.clear_autocast_cache()

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        """Send nothing first on a CPU: PyTorch 2.9 sends 8 bytes there to a rank that waits for 4."""
        if self.device.type == "cpu":  # type: ignore[attr-defined]
            return []
        return super()._get_init_p2p_neighbors_ops()  # type: ignore[misc, no-any-return]
