"""In place of shared batches: every rank has the whole loss, and gradients of its part of the model."""

from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence, Set, Type

import torch
import torch.distributed as dist

from ..gradients import Gradients
from ..refusal import Refusal
from ..streams import Streams
from ..wholes import whole
from ..world import World
from .absent_weights import AbsentWeight
from .context import ContextSplit
from .kind import WITH_SEEDS, WITH_THE_BATCH, Split
from .pipeline import PipelineSplit
from .same_inputs import SameInputs
from .tensor import TensorSplit

KINDS: Dict[str, Type[Split]] = {"tensor": TensorSplit, "context": ContextSplit, "pipeline": PipelineSplit}
TOLERANCE = 1e-3  # of losses of the same batch: processors may differ in the last digits


class SplitGradients(Gradients):
    """The parameters of all optimizers, of models that are split."""

    def __init__(self, world: World, how: str, say: Callable[[str], None], streams: Streams) -> None:
        super().__init__(world)
        self.split: Optional[Split] = KINDS[how](world, say, streams)
        self.split.optimizers = lambda: [known() for known in self._optimizers]
        self.headline = self.split.headline
        self.draws_as_one = self.split.draws_as_one
        self.inputs = SameInputs()
        self._settled: Set[int] = set()

    def become_alone(self) -> None:
        """Go on as one device with the whole model."""
        super().become_alone()
        self.split = None

    def shard(self) -> None:
        """Split what is trained and is not split yet."""
        if self.split is None:
            return
        self.prepare()
        if any(id(one) not in self._settled for one in self._parameters):
            self.split.apply(self._parameters)
            self._parameters = self.parameters()
            self._settled = {id(one) for one in self._parameters}

    def backward(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        """Run backward() on every rank, from the same loss."""
        if self.split is None or not self.split.roots:
            raise Refusal(
                "the script called backward() before echelon split a model; every rank would train on the same batch",
                "call a torch.nn.Module, and step with a torch.optim optimizer, or " + WITH_THE_BATCH,
            )
        wait = self._begin_comparison(loss)
        run_backward(loss)
        self.split.finish(self._parameters)
        wait()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.split is not None:
            self.split.refuse_optimizer(optimizer)
        super().before_step(optimizer)
        AbsentWeight.in_step = True

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        super().after_step(optimizer)
        AbsentWeight.in_step = False

    def shown(self) -> ContextManager[None]:
        """Let every rank have all weights, gradients and states for a while."""
        return nullcontext() if self.split is None else self.split.shown()

    @property
    def device(self) -> torch.device:
        """This rank's device."""
        return self._world.device

    def present(self, parameter: Any) -> Any:
        """Return a weight as it is now, for who has kept it from before it was split."""
        return parameter if self.split is None else self.split.present(parameter)

    def are_parts(self, gradients: Sequence[Any]) -> List[bool]:
        """Say of each gradient whether other ranks have other parts of it."""
        return [False] * len(gradients) if self.split is None else self.split.are_parts(gradients)

    def _begin_comparison(self, loss: torch.Tensor) -> Callable[[], None]:
        """Begin to see whether all ranks have come to the same loss; it travels while gradients are computed."""
        value = whole(loss.detach()).double().mean()
        both = torch.stack([value, -value])
        work = dist.all_reduce(both, op=dist.ReduceOp.MAX, async_op=True)

        def wait() -> None:
            work.wait()
            most, least = float(both[0]), -float(both[1])
            if most - least > TOLERANCE * max(abs(most), abs(least)):
                raise Refusal(
                    "the ranks computed different losses for the same batch: from %.6g to %.6g" % (least, most),
                    WITH_SEEDS,
                )

        return wait
