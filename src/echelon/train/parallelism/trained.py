"""A model that a script trains with a parallelism by hand; `--scale` calls the same parallelism through hooks."""

import os
from collections.abc import Callable

import torch
from torch import nn

from ..function_types import StateDict
from ..global_tensors.tensors import plain
from ..strategies import batches
from ..strategies.parallel import NO_LIMIT, Step
from ..strategies.states import State, read
from ..strategies.strategy import StrategyError
from ..training import Training
from ..wire.gather import whole


class ParallelModel:
    """A model under a class of parallelism; `run.parallelize(model, CLASS)` returns it."""

    def __init__(self, run: Training, model: nn.Module, loss: Callable[..., torch.Tensor] | None) -> None:
        self._run = run
        self.model = model.to(run.world.device)
        self._loss = loss
        self._optimizer: torch.optim.Optimizer | None = None

    def optimize(self, kind: type, **settings: object) -> torch.optim.Optimizer:
        """Make the optimizer: a class of torch.optim and its settings."""
        optimizer: torch.optim.Optimizer = kind(self.model.parameters(), **settings)
        self._optimizer = optimizer
        self._run.parallelism.add(optimizer)
        return optimizer

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that optimize() made."""
        if self._optimizer is None:
            raise StrategyError("there is no optimizer yet", hint="trained.optimize(torch.optim.AdamW, lr=1e-3)")
        return self._optimizer

    def step(self, inputs: object, targets: object, *, clip: float = NO_LIMIT) -> Step:
        """Train on a batch, which every rank gives whole: forward, backward, clip, step."""
        self.optimizer.zero_grad()
        loss = self.backward(inputs, targets)
        limit = clip if clip > NO_LIMIT else float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        return Step(loss, norm)

    def backward(self, inputs: object, targets: object) -> torch.Tensor:
        """Compute the gradient of the loss over the whole batch, and return that loss."""
        loss = self._forward(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        value: torch.Tensor = plain(loss.detach())
        return value

    @torch.no_grad()
    def evaluate(self, inputs: object, targets: object) -> torch.Tensor:
        """Return the loss over a whole batch; every rank computes it."""
        self._run.parallelism.sync_weights()
        return self._forward(inputs, targets)

    def _forward(self, inputs: object, targets: object) -> torch.Tensor:
        inputs, targets = (batches.each(self._here, batch) for batch in (inputs, targets))
        args, named = batches.arguments_of(inputs)
        outputs = self.model(*args, **named)
        loss: torch.Tensor = batches.own_loss(outputs) if self._loss is None else self._loss(outputs, targets)
        return loss

    def _here(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._run.world.device)

    def state(self) -> StateDict:
        """Return the whole model's state as one device has it, in the memory of the host; every rank must ask."""
        self._run.parallelism.sync_weights(self.model)
        return {
            name: whole(value.detach()).cpu().clone() if isinstance(value, torch.Tensor) else value
            for name, value in self.model.state_dict().items()
        }

    def load(self, state: State) -> None:
        """Load the state of a whole model, from a mapping or a file."""
        self.model.load_state_dict(read(state))

    def save(self, path: str) -> None:
        """Write the whole state of model and optimizer for torch.load(); every rank must ask."""
        content = {"model": self.state(), "optimizer": self.optimizer.state_dict()}
        if self._run.is_main:
            torch.save(content, path + ".part")
            os.replace(path + ".part", path)
