"""Write down what a training does, step by step, so that two of them can be compared."""

import json
import os
from typing import Any, List, Mapping, Optional

import torch
from torch import nn

_save = torch.save  # before it is hooked: this is not the script's, and one rank alone writes


class Record:
    """The losses, gradient norms and learning rates of the first steps, and all tensors at some of them."""

    def __init__(self, folder: str, *, num_steps: int, is_main: bool) -> None:
        self._folder = folder
        self._num_steps = num_steps
        self._is_main = is_main
        self._kept = {1, 2, num_steps}
        self._step = 0
        self.loss: Optional[float] = None
        """Of the last backward, as it is for the whole batch."""

    def before_step(self, optimizer: torch.optim.Optimizer, parameters: List[nn.Parameter]) -> None:
        """Note one optimizer step; after the last that was asked for the script is ended."""
        self._step += 1
        if self._step > self._num_steps:
            os._exit(0)
        if not self._is_main:
            return
        squares = [float(one.grad.detach().double().pow(2).sum()) for one in parameters if one.grad is not None]
        row = {
            "step": self._step,
            "loss": self.loss,
            "gradient_norm": sum(squares) ** 0.5,
            "learning_rate": float(optimizer.param_groups[0]["lr"]),
        }
        with open(os.path.join(self._folder, "steps.jsonl"), "a") as file:
            file.write(json.dumps(row) + "\n")
        if self._step in self._kept:
            self._keep(parameters)

    def _keep(self, parameters: List[nn.Parameter]) -> None:
        tensors = {
            "parameters": [one.detach().cpu() for one in parameters],
            "gradients": [None if one.grad is None else one.grad.detach().cpu() for one in parameters],
        }
        _save(tensors, os.path.join(self._folder, "step-%d.pt" % self._step))


def asked(environ: Mapping[str, str], *, is_main: bool) -> Optional[Record]:
    """Return the record that the environment asks for; None where it does not."""
    folder = environ.get("ECHELON_RECORD", "")
    return Record(folder, num_steps=int(environ["ECHELON_RECORD_STEPS"]), is_main=is_main) if folder else None


def in_other_order(batch: Any) -> Any:
    """Return the same samples in another order: sums over them differ by rounding alone."""
    if isinstance(batch, torch.Tensor):
        return batch.flip(0) if batch.dim() else batch
    if isinstance(batch, dict):
        return type(batch)((key, in_other_order(value)) for key, value in batch.items())
    if isinstance(batch, (list, tuple)) and any(isinstance(entry, torch.Tensor) for entry in batch):
        return type(batch)(in_other_order(value) for value in batch)
    return batch[::-1] if isinstance(batch, list) else batch
