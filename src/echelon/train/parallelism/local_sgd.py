"""`--sync-every`: each rank steps along its own gradients, and weights are exchanged when ranks meet."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..base_parallelism import Setup, refuse_several_devices
from ..fsdp import roots_of
from ..global_tensors.tensors import Partial
from ..local_sgd import hooks
from ..local_sgd.meetings import MeetingRule, Meetings
from .shared_batches import SharedBatches


class LocalSGD(SharedBatches):
    cuts_draws = False
    is_as_one_device = False
    trains_alone = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        options = setup.options
        rule = MeetingRule(options.steps_alone, options.outer_learning_rate, options.outer_momentum, options.is_late)
        self.meetings = Meetings(setup.world, rule)

    def headline(self) -> str:
        options = self._options
        steps = "step" if options.steps_alone == 1 else f"{options.steps_alone} steps"
        name, action = "local SGD", "average their weights"
        if options.outer_learning_rate != 1.0 or options.outer_momentum:
            name = "DiLoCo"
            action = (f"move by their mean progress with Nesterov's momentum {options.outer_momentum:g} and "
            f"learning rate {options.outer_learning_rate:g}")  # fmt: skip
        late = ", taken in one meeting later" if options.is_late else ""
        return (
            f"this training differs from one device: {self.world.size} ranks train alone, each on its part of every "
            f"batch, and {action} after every {steps} ({name}{late}); echelon does not compare the first step"
        )

    def install(self, run: Any) -> None:
        hooks.install(run, self.meetings, self.one_step)

    def prepare(self) -> None:
        """Agree with the other ranks on new parameters; known parameters stay each rank's own until a meeting."""
        parameters = self.parameters()
        known = {id(parameter) for parameter in self._parameters}
        new = [parameter for parameter in parameters if id(parameter) not in known]
        if self.world.size == 1 or not new:
            return
        refuse_several_devices(parameters)
        for parameter in new:
            if not self.meetings.knows([parameter]):
                dist.broadcast(parameter.detach(), 0)
        self._parameters += new  # also those that are frozen for a while, as a GAN does with its critic

    def mean_gradients(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        """Run backward() for this rank alone."""
        run_backward(loss)

    def _send_value(self, loss: Partial) -> None:
        """Send no value: a rank that trains alone does not wait for other ranks."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.num_steps += 1
        if self.world.size > 1:
            self.meetings.before_step(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.world.size > 1:
            self.meetings.after_step(optimizer)

    def one_step(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
        """Count a with block as one step, whether or not the optimizer steps."""
        return self.meetings.one_step(optimizer) if self.world.size > 1 else nullcontext()

    def reduce(self) -> None:
        """Leave gradients as they are: each rank clips and unscales its own."""

    def sync_weights(self, module: nn.Module | None = None) -> None:
        """Give all ranks the same weights and buffers, before a script reads those of a module."""
        if self.world.size == 1 or (module is not None and not self.meetings.knows(module.parameters())):
            return
        weights = self.meetings.weights() if self.meetings.are_apart else []
        if self.meetings.meet_if_apart():
            self._settle_buffers([buffer for root in roots_of(weights) for buffer in root.buffers()])

    def _settle_buffers(self, buffers: list[torch.Tensor]) -> None:
        """Average the buffers that differ between ranks, such as BatchNorm's means; constants keep their bits."""
        floating = [buffer for buffer in buffers if buffer.is_floating_point() and buffer.numel()]
        if not floating:
            return
        digests = torch.stack([_digest(buffer) for buffer in floating]).to(self.world.device)
        ends = torch.stack([digests, -digests])
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        differ = (ends[0] != -ends[1]).tolist()
        self.meetings.mean([buffer for buffer, differs in zip(floating, differ, strict=False) if differs])


def _digest(buffer: torch.Tensor) -> torch.Tensor:
    """Return a number that identifies a buffer's content; BatchNorm changes buffers without a new version."""
    values = buffer.detach().double().reshape(-1)
    return torch.dot(values, torch.arange(1.0, values.numel() + 1, dtype=values.dtype, device=values.device).cos())
