"""Give every optimizer the gradient of the global batch, with PyTorch's own DistributedDataParallel.

Not the model is called through DDP but the loss on its way to backward(): then it does not matter through which of its
methods the model was called, how often, or how many models there are. DDP overlaps the communication as always.
"""

import inspect
import weakref
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Collection, ContextManager, Dict, Iterator, List, Optional

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel, distributed

from . import patches
from .buckets import DEFAULT_MEGABYTES, Buckets
from .compression import compress
from .exact.weights import Weights
from .refusal import Refusal
from .shards import Shards
from .view import exchange
from .wholes import is_sharded
from .witnesses import Witnesses, multiply_all
from .world import World

_HAS_SWITCH = "init_sync" in inspect.signature(DistributedDataParallel).parameters  # not in PyTorch 2.6
_NO_SYNC: Dict[str, Any] = {"init_sync": False} if _HAS_SWITCH else {}


class _Trained(nn.Module):
    """All parameters that some optimizer changes; its forward lets a loss pass."""

    def __init__(self, parameters: List[nn.Parameter]) -> None:
        super().__init__()
        self.parameters_of_optimizers = nn.ParameterList(parameters)

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss


class Gradients:
    """The parameters of all optimizers, and whether their gradients are those of the global batch."""

    headline = ""
    """What a person is told of another way than sharing batches."""
    draws_as_one = False
    """Whether what is drawn inside of a model is what one device draws."""

    def __init__(
        self, world: World, *, are_sharded: bool = False, buckets: Optional[Buckets] = None, compression: str = ""
    ) -> None:
        self._world = world
        self._buckets = Buckets(world, megabytes=DEFAULT_MEGABYTES) if buckets is None else buckets
        self._compression = compression
        self._shards = Shards(world) if are_sharded else None
        self._optimizers: "List[weakref.ref[torch.optim.Optimizer]]" = []  # in the order in which all ranks made them
        self._parameters: List[nn.Parameter] = []
        self._ddp: Optional[DistributedDataParallel] = None
        self._sparse: Dict[int, nn.Parameter] = {}  # whose gradients DDP cannot take
        self._finds_unused = True
        self._backwards = 0  # since the last step
        self._backwards_per_step = 1  # in the step before
        self._is_in_step = False
        self._accumulates = True
        self.num_steps = 0
        self.witnesses = Witnesses()
        self.is_local = False
        """Whether a gradient lacks the other ranks' part."""

    def become_alone(self) -> None:
        """Go on without the other ranks."""
        self._world = self._world._replace(size=1)
        self._shards = None
        self._ddp = None

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Take an optimizer's parameters in."""
        if all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    @property
    def has_optimizers(self) -> bool:
        return any(known() is not None for known in self._optimizers)

    def known_optimizers(self) -> List[torch.optim.Optimizer]:
        """Return the optimizers that there are, in the order of all ranks."""
        return [optimizer for known in self._optimizers if (optimizer := known()) is not None]

    def parameters(self) -> List[nn.Parameter]:
        """Return what is trained, each once, in the order of the optimizers' groups."""
        parameters: Dict[int, nn.Parameter] = {}
        for optimizer in self.known_optimizers():
            parameters.update((id(parameter), parameter) for parameter in self.parameters_of(optimizer))
        return list(parameters.values())

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> List[nn.Parameter]:
        """Return what one optimizer trains."""
        return [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]

    def place_of(self, optimizer: torch.optim.Optimizer) -> int:
        """Return an optimizer's place in the order in which all ranks made them."""
        self.add(optimizer)
        return next(place for place, known in enumerate(self._optimizers) if known() is optimizer)

    def all_but(self, places: Collection[int]) -> List[List[nn.Parameter]]:
        """Return what each of the other optimizers trains that there are now."""
        others = [known() for place, known in enumerate(self._optimizers) if place not in places]
        return [self.parameters_of(optimizer) for optimizer in others if optimizer is not None]

    def known_parameters(self) -> List[nn.Parameter]:
        """Return what all ranks have met over, in the order of all ranks."""
        return self._parameters

    def prepare(self) -> None:
        """Meet the other ranks over the parameters; they get rank 0's values when they are first seen."""
        parameters = self.parameters()
        if self._world.size == 1 or not parameters:
            return
        known = {id(one) for one in self._parameters}
        if {id(one) for one in parameters} != known:
            refuse_several_devices(parameters)
            for parameter in parameters:
                if id(parameter) not in known and not is_sharded(parameter):
                    dist.broadcast(parameter.data, 0)  # a graph that waits for its backward() shall not notice
            self._parameters = parameters
            self._ddp = None

    def shard(self) -> None:
        """Spread the weights over the ranks, where that was asked for."""
        if self._shards is None:
            return
        self._shards.refuse_thawed()
        self.prepare()
        if not all(is_sharded(one) for one in self._parameters):
            self._shards.apply(self.known_optimizers(), self._parameters)
            self._parameters = self.parameters()

    def _wrap(self, *, finds_unused: bool) -> None:
        self._ddp = None  # its hooks go with it
        self._finds_unused = finds_unused
        dense = [one for one in self._parameters if id(one) not in self._sparse]
        if dense:
            self._buckets.begin(dense)
            with _without_sync():
                self._ddp = DistributedDataParallel(
                    _Trained(dense),
                    find_unused_parameters=finds_unused,
                    bucket_cap_mb=self._buckets.limit,
                    **_NO_SYNC,
                )
            compress(self._ddp, self._compression)

    def backward(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        """Run backward() so that gradients are the mean over all ranks."""
        self._backwards += not self._is_in_step
        if self._shards is not None:
            run_backward(loss)  # fully_shard means gradients as it scatters them
            self.is_local = True
            self.reduce()
        elif self._ddp is None:
            run_backward(loss)
            self._after_first()
        elif self._may_wait():
            with self._ddp.no_sync():  # more come before the step, which will carry these along
                run_backward(self._ddp(loss))
            self.is_local = True
        else:
            with self._buckets.timing():
                run_backward(self._ddp(loss))
            self.is_local = False
            self._after_sync()
            if self._buckets.are_others_due():
                self._wrap(finds_unused=self._finds_unused)

    def may_be_multiplied(self, loss: torch.Tensor) -> bool:
        """Say whether the gradients of this loss may be multiplied by a factor when they are there."""
        if self._shards is not None or self.witnesses.are_there:
            return False
        if self._ddp is None:
            self.witnesses.look(loss, self._parameters)
        return not self.witnesses.are_there and all(one.grad is None for one in self._parameters)

    def multiply(self, loss: torch.Tensor, factor: Optional[float]) -> None:
        """Multiply the gradients of this loss, which were asked for above."""
        if factor is not None and factor != 1:
            multiply_all(loss, factor, self._parameters)

    def backward_of_shards(self, loss: Any, run_backward: Callable[[torch.Tensor], None]) -> torch.Tensor:
        """Run backward() for each virtual shard by itself and add up by one tree; return the value of the loss."""
        self._backwards += not self._is_in_step
        weights = Weights(self._parameters, self._shards.roots if self._shards is not None else ())
        value: torch.Tensor = self._world.joints.backward(loss, run_backward, weights, self._world)
        return value

    def _may_wait(self) -> bool:
        """Say whether this backward is one of several before a step, by what was seen in the step before."""
        is_early = self._backwards < self._backwards_per_step and not self._is_in_step
        return is_early and self._accumulates and not self._finds_unused

    def _after_first(self) -> None:
        """Let DDP take over, now that it is seen whether every parameter has a part in the loss."""
        if self._world.size == 1:
            return
        self.is_local = True
        self.reduce()
        self._wrap(finds_unused=any(parameter.grad is None for parameter in self._parameters))

    def _after_sync(self) -> None:
        """Notice a backward that left parameters out although none did before: DDP has then not finished."""
        self._mean(list(self._sparse.values()))
        if self._ddp is None or self._finds_unused:
            return
        try:
            self._ddp.reducer._check_reducer_finalized()
        except RuntimeError:
            self.is_local = True
            self.reduce()
            self._wrap(finds_unused=True)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make gradients whole before anything uses them, and learn how many backwards a step has."""
        if self._shards is not None:
            self._shards.refuse_optimizer(optimizer)
        self.reduce()
        self._is_in_step = True
        self.num_steps += 1
        if self._world.is_exact:
            self._world.joints.at_step()
        self._backwards_per_step = max(self._backwards, 1)
        self._backwards = 0

    def note_zero(self) -> None:
        """Notice gradients that are cleared between two backwards of one step: each is used, none is accumulated."""
        self._accumulates = self._accumulates and self._backwards == 0

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        """End a step; until then a closure (LBFGS) may have called backward() again and used what came of it."""
        self._is_in_step = False

    def present(self, parameter: Any) -> Any:
        """Return a weight as it is now, for who has kept it from before it was spread."""
        return parameter if self._shards is None else self._shards.former.present(parameter)

    def shown(self) -> ContextManager[None]:
        """Let every rank have all that is trained for a while; here each has it, or its part of every tensor."""
        return nullcontext()

    def settle(self, module: Optional[nn.Module] = None) -> None:
        """Let all ranks have the same weights before somebody looks at those of a module; here they always have."""

    def reduce(self) -> None:
        """Take the mean over all ranks where that is still due; what was reduced before is equal and stays."""
        if not self.is_local or self._world.size == 1:
            return
        self.is_local = False
        self._mean([one for one in self._parameters if not is_sharded(one)])

    def _mean(self, parameters: List[nn.Parameter]) -> None:
        """Take the mean of gradients over all ranks."""
        if not parameters:
            return
        kinds = torch.tensor([_kind(parameter.grad) for parameter in parameters], device=self._world.device)
        dist.all_reduce(kinds, op=dist.ReduceOp.MAX)  # what one rank's samples leave out another's may need
        for parameter, kind in zip(parameters, kinds.tolist()):  # noqa: B905
            if kind == _SPARSE:
                parameter.grad = self._sparse_mean(parameter)
            elif kind == _DENSE:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= self._world.size

    def _sparse_mean(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the rows that the samples of all ranks have touched (nn.Embedding(sparse=True))."""
        self._sparse[id(parameter)] = parameter
        given = torch.zeros_like(parameter).to_sparse(1) if parameter.grad is None else parameter.grad
        gradient = given.coalesce()
        rows = exchange.counts(gradient.values().size(0), self._world)
        indices = exchange.gather(gradient.indices().t().contiguous(), self._world, rows)
        values = exchange.gather(gradient.values(), self._world, rows) / self._world.size
        return torch.sparse_coo_tensor(indices.t(), values, parameter.shape, check_invariants=False).coalesce()


@contextmanager
def _without_sync() -> Iterator[None]:
    """Let DDP leave weights as they are, which ranks have agreed on: a graph may wait for its backward()."""
    name = "_sync_module_states"
    if _HAS_SWITCH:
        yield
        return
    why = "DDP leaves weights as they are: the ranks have agreed on them."
    with patches.replaced(distributed, name, lambda *_args, **_kwargs: None, why=why):
        yield


def refuse_several_devices(parameters: List[nn.Parameter]) -> None:
    devices = sorted({str(one.device) for one in parameters})
    if len(devices) > 1:
        raise Refusal(
            "the model has parameters on several devices: %s" % ", ".join(devices),
            "put the whole model on one device: each rank has its own device, and echelon run --scale fsdp … "
            "shards the model over them",
        )


_DENSE, _SPARSE = 1, 2


def _kind(gradient: Optional[torch.Tensor]) -> int:
    return 0 if gradient is None else _SPARSE if gradient.is_sparse else _DENSE
