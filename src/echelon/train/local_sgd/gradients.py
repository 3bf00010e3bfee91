"""In place of exchanged gradients: each rank steps along its own, and weights are exchanged when ranks meet."""

from contextlib import nullcontext
from typing import Callable, ContextManager, List, Optional

import torch
import torch.distributed as dist
from torch import nn

from ..gradients import Gradients, refuse_several_devices
from ..shards import roots_of
from ..world import World
from .meetings import Meetings, Rule


class OwnGradients(Gradients):
    """The parameters of all optimizers, of which every rank changes its own copy between meetings."""

    def __init__(self, world: World, rule: Rule) -> None:
        super().__init__(world)
        self.meetings = Meetings(world, rule)

    def prepare(self) -> None:
        """Meet the other ranks over parameters that are new; what was met once is each rank's own until a meeting."""
        parameters = self.parameters()
        known = {id(one) for one in self._parameters}
        new = [one for one in parameters if id(one) not in known]
        if self._world.size == 1 or not new:
            return
        refuse_several_devices(parameters)
        for parameter in new:
            if not self.meetings.knows([parameter]):
                dist.broadcast(parameter.detach(), 0)
        self._parameters += new  # also those that are frozen for a while, as a GAN does with its critic

    def backward(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        """Run backward() for this rank alone."""
        run_backward(loss)

    def may_be_multiplied(self, loss: torch.Tensor) -> bool:  # noqa: ARG002
        """Let a loss be right from the start: no exchange of gradients is there to wait for."""
        return False

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.num_steps += 1
        if self._world.size > 1:
            self.meetings.before_step(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._world.size > 1:
            self.meetings.after_step(optimizer)

    def one_step(self, optimizer: torch.optim.Optimizer) -> ContextManager[None]:
        """Count what happens here as one step, whether or not the optimizer steps."""
        return self.meetings.one_step(optimizer) if self._world.size > 1 else nullcontext()

    def note_zero(self) -> None:
        """Nothing is made ready for a step that other ranks would have to know of."""

    def reduce(self) -> None:
        """Leave gradients as they are: each rank clips and unscales its own."""

    def settle(self, module: Optional[nn.Module] = None) -> None:
        """Let all ranks have the same weights and buffers, before somebody looks at those of a module."""
        if self._world.size == 1 or (module is not None and not self.meetings.knows(module.parameters())):
            return
        weights = self.meetings.weights() if self.meetings.are_apart else []
        if self.meetings.settle():
            self._settle_buffers([one for root in roots_of(weights) for one in root.buffers()])

    def _settle_buffers(self, buffers: List[torch.Tensor]) -> None:
        """Average what differs from rank to rank, such as BatchNorm's means; a constant stays as it is, to the bit."""
        floating = [one for one in buffers if one.is_floating_point() and one.numel()]
        if not floating:
            return
        digests = torch.stack([_digest(one) for one in floating]).to(self._world.device)
        ends = torch.stack([digests, -digests])
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        differ = (ends[0] != -ends[1]).tolist()
        self.meetings.mean([one for one, differs in zip(floating, differ) if differs])  # noqa: B905


def _digest(buffer: torch.Tensor) -> torch.Tensor:
    """Return a number that tells a buffer from others; BatchNorm does not count what it writes as a version."""
    values = buffer.detach().double().reshape(-1)
    return torch.dot(values, torch.arange(1.0, values.numel() + 1, dtype=values.dtype, device=values.device).cos())
