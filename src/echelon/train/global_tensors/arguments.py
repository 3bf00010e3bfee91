"""The arguments that a rank gives to a model: its rows of each tensor of samples, and other tensors whole."""

import weakref
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
from torch import nn

from ..scaling_error import ScalingError
from ..wire import exchange
from . import lists
from .tensors import GlobalTensor, Sharded, entered, map_tensors, own_part, tensors_of, version_of

_Place = tuple[object, ...]
"""The place of a tensor among a module's arguments: the argument, the tensor in it, its number of dims, its width."""
_WHOLE = -1
_ALIKE = 0.01
"""What is left of the distance of a row from the mean of all, where rows are made nearly equal."""
_known: "weakref.WeakKeyDictionary[nn.Module, dict[_Place, int]]" = weakref.WeakKeyDictionary()
"""The dim of the rows of a module's arguments, by place, where the sizes of an earlier call showed it."""


class _Entry(NamedTuple):
    owner: torch.Tensor
    """The tensor of the script."""
    local: torch.Tensor
    version: int
    """The version of the local tensor before the model is called."""
    dim: int | None


class Entries:
    """The arguments of one call of a model, for this rank or for one virtual shard."""

    def __init__(self, module: nn.Module, lead: Sharded, first: torch.Tensor | None = None) -> None:
        """`first` is the plain tensor that was cut into the leading rows, where a script draws batches itself."""
        self._module = module
        self._lead = lead
        self._changeable: list[_Entry] = []
        self._dims: dict[int, int | None] = {}
        """The dim of the rows of each tensor that the model gets, by the tensor's identity."""
        self._num_rows = lead.local.size(lead.dim_of_rows)
        self._kept: list[torch.Tensor] = []
        self._lists: list[object] = []
        """The lists and arrays among the arguments that have an entry for each sample."""
        self._guessed: torch.Tensor | None = None
        """A tensor beside the batch that was taken for samples because it is as long as the batch."""
        if first is not None:
            self._note(first, lead.local, lead.dim_of_rows)

    def enter(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[Any, Any]:
        """Return the arguments for this rank's call of the model."""
        own_args = type(args)(self._argument(place, value) for place, value in enumerate(args))
        return own_args, {name: self._argument(name, value) for name, value in kwargs.items()}

    def some(self, value: object, first: int, count: int) -> Any:
        """Return `count` of this rank's samples, from `first` on, of arguments that `enter` returned."""
        num_rows = self._num_rows

        def cut(tensor: torch.Tensor) -> torch.Tensor:
            dim = self._dims.get(id(tensor))
            if dim is None:
                return tensor
            ratio = tensor.size(dim) // num_rows  # rows of tokens, say
            return tensor.detach().narrow(dim, first * ratio, count * ratio).clone()

        return self._changed(value, cut, lambda one: one[first : first + count])

    def alike(self, value: object) -> Any:
        """Return arguments that `enter` returned with rows that are nearly equal, each close to the mean of all."""

        def blend(tensor: torch.Tensor) -> torch.Tensor:
            dim = self._dims.get(id(tensor))
            if dim is None or not tensor.is_floating_point():
                return tensor
            mean = tensor.mean(dim, keepdim=True).expand_as(tensor)
            return self._noted(torch.lerp(mean, tensor, _ALIKE).detach(), dim)

        return self._changed(value, blend, lambda one: one)

    def doubled(self, value: object) -> Any:
        """Return arguments that `enter` returned with twice as many rows: the second half is an altered copy."""

        def double(tensor: torch.Tensor) -> torch.Tensor:
            dim = self._dims.get(id(tensor))
            if dim is None:
                return tensor
            return self._noted(torch.cat([tensor, _altered(tensor)], dim).detach(), dim)

        both = self._changed(value, double, lists.doubled)
        self._num_rows *= 2
        return both

    def _noted(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        self._dims[id(tensor)] = dim
        self._kept.append(tensor)
        return tensor

    def _argument(self, name: object, value: object) -> object:
        value = lists.hide(value, self._own_list)
        numbers = iter(range(len(tensors_of(value))))
        return self._shown(map_tensors(value, lambda tensor: self._own(tensor, (name, next(numbers)))))

    def _own_list(self, value: Any) -> Any:
        """Return this rank's part of a list or array that has an entry for each sample; None for any other."""
        rows = self._lead.rows
        is_of_samples = lists.is_array(value) or lists.is_of_samples(value, {sum(rows)}) or not tensors_of(value)
        if len(value) != sum(rows) or not is_of_samples:
            return None
        first = min(sum(rows[: self._lead.world.rank]), len(value) - 1)  # a rank without samples computes a placeholder
        return value[first : first + max(1, rows[self._lead.world.rank])]

    def _shown(self, value: object) -> object:
        """Return a value with its hidden lists, which are noted as lists of samples."""

        def note(one: object) -> None:
            if isinstance(one, lists.Hidden):
                self._lists.append(one.content)
            elif isinstance(one, (tuple, list, dict)):
                for entry in one.values() if isinstance(one, dict) else one:
                    note(entry)

        note(value)
        return lists.show(value)

    def _changed(
        self, value: object, change: Callable[[torch.Tensor], torch.Tensor], of_list: Callable[[Any], Any]
    ) -> object:
        known = {id(one) for one in self._lists}
        hidden = lists.hide(value, lambda one: of_list(one) if id(one) in known else None)
        return self._shown(map_tensors(hidden, change))

    def _own(self, tensor: torch.Tensor, place: _Place) -> torch.Tensor:
        if isinstance(tensor, Sharded):
            self._dims[id(tensor.local)] = tensor.dim_of_rows
            return tensor.local
        lead = self._lead
        whole = entered(tensor, lead.world)
        if isinstance(whole, nn.Parameter) or not whole.dim():
            return whole
        dim = self._dim_of_rows(whole, place)
        # a copy: a model may write to its rows, while gradients need the whole as it was
        own = whole if dim is None else own_part(whole, lead.world.rank, lead.rows, dim).clone()
        if dim is not None and self._guessed is None:
            self._guessed = tensor
        self._note(tensor, own, dim)
        return own

    def refuse_guess(self, error: Exception) -> None:
        """Refuse a model's failure that may come from a tensor that was wrongly taken for samples."""
        if self._guessed is None or "out of memory" in str(error):
            return
        reason = str(error).partition("\n")[0]
        raise ScalingError(
            f"{type(self._module).__name__} fails on the samples of this rank: {reason}; it also got a tensor of shape "
            f"{tuple(self._guessed.shape)}, which the ranks shared because it is as long as the batch of "
            f"{sum(self._lead.rows)} samples",
            "if that tensor holds no samples, another batch size, or the tensor as a buffer of the model; "
            "or one rank: echelon run -n 1 …",
        ) from error

    def _note(self, owner: torch.Tensor, own: torch.Tensor, dim: int | None) -> None:
        self._changeable.append(_Entry(owner, own, version_of(own), dim))
        self._dims[id(own)] = dim

    def _dim_of_rows(self, tensor: torch.Tensor, place: _Place) -> int | None:
        """Return the batch dim; earlier calls decide, because a size may equal that of the batch by chance."""
        num_rows = sum(self._lead.rows)
        known = _known.setdefault(self._module, {})
        place = (*place, tensor.dim(), tensor.size(-1) if tensor.dim() > 1 else 0)
        before, dim = known.get(place), _dim_by_size(tensor, self._lead)
        if before is None:
            if dim is not None or tensor.size(0) > 1:
                known[place] = _WHOLE if dim is None else dim
            return dim
        if before == _WHOLE:
            return None
        if tensor.dim() > before and tensor.size(before) == num_rows:
            return before
        if dim is None and tensor.size(0) > 1:
            raise ScalingError(
                f"{type(self._module).__name__} gets a tensor of shape {tuple(tensor.shape)} with a "
                f"batch of {num_rows} samples; an earlier tensor in the same place "
                "had as many rows as its batch, so echelon took its rows for samples",
                f"use a batch size other than {tensor.size(0)}, or make the tensor a buffer of the "
                "model if its rows are not "
                "samples, or start one rank: echelon run -n 1 …",
            )
        return dim

    def leave(self) -> None:
        """Copy in-place changes of the model's arguments back to the script's tensors."""
        for owner, own, version, dim in self._changeable:
            if version_of(own) == version:
                continue
            if dim is None or own.is_inference() or self._lead.world.is_exact:
                raise ScalingError(
                    f"{type(self._module).__name__} changes an argument of shape {tuple(owner.shape)} in place",
                    "let the model change a copy: x = x.clone(), or start one rank: echelon run -n 1 …",
                )
            whole = exchange.gather(own, self._lead.world, self._lead.rows, dim)
            if isinstance(owner, GlobalTensor):
                owner.put_whole(whole)
            else:
                owner.copy_(whole)


def _altered(tensor: torch.Tensor) -> torch.Tensor:
    """Return other samples of the same kind."""
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor.detach() * 0.75 + 0.125
    return tensor.flip(-1) if tensor.dim() > 1 else torch.zeros_like(tensor)


def _dim_by_size(tensor: torch.Tensor, lead: Sharded) -> int | None:
    """Return the dim of a plain tensor that is as long as the batch: the first, or the second as in an RNN's state."""
    num_rows = sum(lead.rows)
    if tensor.size(0) == num_rows:
        return None if _is_of_positions(tensor, lead) else 0
    return 1 if tensor.dim() > 2 and tensor.size(1) == num_rows else None


def _is_of_positions(tensor: torch.Tensor, lead: Sharded) -> bool:
    """Say whether a square tensor as long as the batch is a mask over positions or a graph, and not samples."""
    is_square = tensor.dim() == 2 and tensor.size(0) == tensor.size(1) > 1
    if not is_square or (tensor.shape == lead.shape and tensor.dtype == lead.dtype):
        return False
    if tensor.dtype == torch.bool:
        return True
    if not tensor.is_floating_point() or getattr(tensor, "comes_from_batches", False):
        return False
    content = tensor.detach()
    corner = content[0, -1]  # in a causal mask all elements above the diagonal are equal
    above = torch.ones_like(content, dtype=torch.bool).triu(1)
    if bool((content[above] == corner).all()) or bool(((content == 0) | (content == 1) | (content < -1e4)).all()):
        return True
    raise ScalingError(
        f"the model gets a square tensor of shape {tuple(tensor.shape)} with a batch of as many samples; "
        "echelon cannot tell "
        "whether its rows are samples",
        "use another batch size, or make the tensor a buffer of the model if its rows are not samples, or "
        "start one rank: echelon run -n 1 …",
    )


Doubt = tuple[str, str]
"""The reason and the way out of a refusal that holds only if something goes wrong."""


TIME_FIRST = (nn.RNNBase, nn.MultiheadAttention)
"""Layers that expect time in the first dim, unless they have batch_first=True."""


def doubt(module: nn.Module, tensors: list[torch.Tensor], num_rows: int) -> Doubt | None:
    """Return why the rows of a model's first tensor may be no samples; None where there is no reason to doubt."""
    if not tensors:
        return None
    return _of_time(module, tensors[0], num_rows) or of_graph(module, tensors, num_rows)


def dim_of_samples(module: nn.Module, first: torch.Tensor, batch_sizes: Collection[int]) -> int:
    """Return 1 where a layer expects time in the first dim, and only the second is as long as a loader's batch."""
    is_second = first.dim() > 1 and first.size(1) in batch_sizes and first.size(0) not in batch_sizes
    return int(is_second and _time_first(module) is not None)


def _time_first(module: nn.Module) -> nn.Module | None:
    return next((one for one in module.modules() if isinstance(one, TIME_FIRST) and not one.batch_first), None)


def _of_time(module: nn.Module, first: torch.Tensor, num_rows: int) -> Doubt | None:
    """Doubt the rows of a model with a layer that expects time in the first dim and samples in the second."""
    layer = _time_first(module)
    if layer is None or first.dim() < 2:
        return None
    return of_layer(module, tuple(first.shape), num_rows, type(layer).__name__)


def of_layer(module: nn.Module, shape: tuple[int, ...], num_rows: int, layer: str) -> Doubt:
    """Return the refusal of a batch that came into a layer with its samples in the first dim, which is time there."""
    return (
        (
            f"the script called {type(module).__name__} with a tensor of shape {shape}, and its batch "
            f"dimension is dim 1: {layer} has "
            f"batch_first=False; the ranks shared dim 0, which has {num_rows} time steps"
        ),
        f"use {layer}(…, batch_first=True), and batches with the samples in dim 0: x.transpose(0, 1); or start one "
        "rank: echelon run -n 1 …",
    )


def of_graph(module: nn.Module, tensors: list[torch.Tensor], num_rows: int) -> Doubt | None:
    """Doubt rows that may be the nodes of one graph: each node uses other nodes."""
    edges = next((one for one in tensors[1:] if _connects(one, tensors[0], num_rows)), None)
    if edges is None:
        return None
    return (
        (
            f"the script called {type(module).__name__} with one graph: {num_rows} nodes in a tensor of "
            f"shape {tuple(tensors[0].shape)}, and edges in a tensor of shape "
            f"{tuple(edges.shape)}; nodes are not samples, because each node uses other nodes"
        ),
        "use batches of several graphs, from a loader that makes them; or start one rank: echelon run -n 1 …",
    )


def _connects(tensor: torch.Tensor, first: torch.Tensor, num_nodes: int) -> bool:
    if tensor.dim() != 2 or num_nodes < 3 or isinstance(tensor, nn.Parameter):
        return False
    is_like_samples = tensor.shape == first.shape and tensor.dtype == first.dtype  # targets of tokens, say
    is_matrix = tensor.shape == (num_nodes, num_nodes) and not is_like_samples
    is_list = not tensor.is_floating_point() and 2 in tensor.shape and num_nodes not in tensor.shape
    return is_matrix or is_list
