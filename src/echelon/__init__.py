"""echelon takes a training script from one GPU to a whole supercomputer."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from echelon.train.checkpoints.saving import Checkpoints
    from echelon.train.parallelism.fully_sharded import FullySharded as FullySharded
    from echelon.train.parallelism.replicated import Replicated as Replicated
    from echelon.train.parallelism.shared_batches import SharedBatches as SharedBatches
    from echelon.train.run import Run
    from echelon.train.strategies.strategy import Strategy as Strategy

__version__ = "0.1.0"


def start(exact: int = 0) -> Run:
    """Begin the explicit form of scaling: join the other ranks, and return this process's run.

    Call it once, before the model is made; a later call returns the same run. It also works in a single process. Under
    `echelon run -n N` (or torchrun) each of N ranks calls it. `run.loader` gives each rank its rows of every batch;
    the batch still shows the shape of the global batch. `run.model` averages gradients over all ranks, so the weights
    are those of one device with the global batch, up to rounding.

    `exact` is a number of virtual shards: a power of two from 2 on, and a multiple of N. Batches are then computed in
    `exact` parts that are added up in a fixed order (docs/exact.md), so all bits are equal on 1, 2, 4 … `exact` ranks.
    0 means no shards. An invalid number, or one that differs from the run's, ends the script with the reason and the
    repair (exit code 2 under `echelon run`). The exception derives from BaseException, so that no handler hides it.

    >>> import torch
    >>> import echelon
    >>> run = echelon.start()
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> model = run.model(model, optimizer)
    >>> loader = run.loader(torch.utils.data.DataLoader(torch.ones(8, 3), batch_size=4))
    >>> for batch in loader:
    ...     optimizer.zero_grad()
    ...     model(batch).square().mean().backward()
    ...     optimizer.step()
    >>> list(batch.shape), run.is_main
    ([4, 3], True)
    """
    from echelon.pytorch import targets

    targets.check("scale")
    from echelon.train import start as train_start

    return train_start.start(exact)


def checkpoints(*, every: str = "10m", **named: Any) -> Checkpoints:
    """Save a training that distributes itself as it goes, and go on where its newest whole checkpoint was made.

    Call it once, just before the loop: after the models and optimizers are made, seeds are set and `torch.distributed`
    is initialized. It also works in a single process. The names are the script's own: modules (also in DDP, or with
    the DTensors of fully_shard()), optimizers, what `run.parallelize()` returned, and any object with state_dict() and
    load_state_dict(), such as a scheduler. `every` is an interval: "10m", "2h", "200steps"; --checkpoint-every of the
    command line comes first. Checkpoints are in RUN/checkpoints under `echelon run`, else in ./checkpoints.

    A step is what lies between two batches if an optimizer stepped there. The exception for what cannot be saved, or
    does not fit the checkpoint, ends the script with the reason and the repair.

    >>> import os, tempfile, torch
    >>> import echelon
    >>> os.chdir(tempfile.mkdtemp())
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> checkpoint = echelon.checkpoints(model=model, optimizer=optimizer, every="2steps")
    >>> for epoch in checkpoint.epochs(2):
    ...     for batch in checkpoint.batches(torch.utils.data.DataLoader(torch.ones(8, 3), batch_size=4)):
    ...         optimizer.zero_grad()
    ...         model(batch).square().mean().backward()
    ...         optimizer.step()
    ...     checkpoint.values["epochs"] = epoch + 1
    >>> checkpoint.step_number
    4
    """
    from echelon.train import start as train_start
    from echelon.train.checkpoints.saving import Checkpoints

    run = train_start.current()
    return Checkpoints(every, named) if run is None else run.checkpoint(every=every, **named)


def load_ipython_extension(shell: Any) -> None:
    """Offer `%%echelon` in IPython and Jupyter, after `%load_ext echelon` (docs/notebook.md)."""
    importlib.import_module("echelon.notebook.magic").load(shell)


class CallableRoom(ModuleType):
    """This room can be called, because the function for people has its name: echelon.launch(function, ranks=4)."""

    def __call__(
        self, function: Callable[..., Any], ranks: int = 0, args: Sequence[Any] = (), options: Sequence[str] = ()
    ) -> Any:
        """Run a function of a file on several ranks; return what it returns on rank 0.

        `ranks` is the number on each node; 0: one for each device. `args` and the result are plain data: numbers,
        text, lists and dicts; the result may have tensors, which come whole and on the CPU, and modules, which come
        as their state_dict(). `options` are those of `echelon run`. The function must be importable by its name, from
        a file beside the current folder or an installed one; a cell of a notebook is run by `%%echelon`. Raises
        UsageError for what cannot be started, and RanksFailed if the run fails.

        >>> import echelon
        >>> from mathematics import total  # doctest: +SKIP
        >>> echelon.launch(total, ranks=2, args=[3])  # doctest: +SKIP
        9
        """
        return importlib.import_module("echelon.notebook.functions").call(function, ranks, args, options)


_OF_TRAINING = {
    "Strategy": "strategies.strategy",
    "SharedBatches": "parallelism.shared_batches",
    "Replicated": "parallelism.replicated",
    "FullySharded": "parallelism.fully_sharded",
}


def __getattr__(name: str) -> Any:
    """Import a class of training on first use; until then nothing of `echelon.train` is imported."""
    if name in _OF_TRAINING:
        return getattr(importlib.import_module(f"echelon.train.{_OF_TRAINING[name]}"), name)
    if name == "launch":
        return importlib.import_module("echelon.launch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
