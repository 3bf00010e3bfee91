"""What the guides of Accelerate and Lightning Fabric make their user write, as text that is put into a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Guide(Protocol):
    """The lines of one tool."""

    name: str
    package: str
    """Where its errors are raised: a part of the paths of its files."""
    distribution: str
    variable: str
    is_main: str
    barrier: str
    divides_batch: bool
    """Whether the batch size of a loader is per process, and has to be divided by hand."""
    joins_loaders: bool
    """Whether loaders are prepared together with models and optimizers."""

    def head(self, num_ranks: int) -> str:
        """Return what stands after the imports."""
        ...

    def loader(self, loader: str) -> str:
        """Return an expression for the loader of training."""
        ...

    def setup(self, models: Sequence[str], optimizer: str, others: Sequence[str]) -> str:
        """Return the statements that follow the construction of models, their optimizer, schedulers and loaders."""
        ...

    def setup_list(self, models: Sequence[str], optimizers: str, others: Sequence[str]) -> str:
        """Return the same for a list of optimizers, one for each model."""
        ...


class Accelerate:
    """https://huggingface.co/docs/accelerate/basic_tutorials/migration, and split_batches for the global batch."""

    name = "Accelerate"
    package = "/accelerate/"
    distribution = "accelerate"
    variable = "accelerator"
    is_main = "accelerator.is_main_process"
    barrier = "accelerator.wait_for_everyone()"
    divides_batch = False
    joins_loaders = True

    def head(self, num_ranks: int) -> str:  # noqa: ARG002
        """Return the import and the object; how many processes there are it reads from the environment."""
        return (
            "from accelerate import Accelerator, DataLoaderConfiguration\n"
            "accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))\n"
        )

    def loader(self, loader: str) -> str:
        """Prepare a loader where it is built."""
        return f"accelerator.prepare({loader})"

    def setup(self, models: Sequence[str], optimizer: str, others: Sequence[str]) -> str:
        """Prepare everything at once, as the guide does."""
        names = ", ".join([*models, optimizer, *others])
        return f"{names} = accelerator.prepare({names})"

    def setup_list(self, models: Sequence[str], optimizers: str, others: Sequence[str]) -> str:
        """Prepare the models and the loaders, and each optimizer of a list."""
        lines = [f"{name} = accelerator.prepare({name})" for name in [*models, *others]]
        return "\n".join([*lines, f"{optimizers} = [accelerator.prepare(one) for one in {optimizers}]"])


class Fabric:
    """https://lightning.ai/docs/fabric/stable/fundamentals/convert.html, in its five steps."""

    name = "Fabric"
    package = "/lightning/"
    distribution = "lightning"
    variable = "fabric"
    is_main = "fabric.is_global_zero"
    barrier = "fabric.barrier()"
    divides_batch = True
    joins_loaders = False

    def head(self, num_ranks: int) -> str:
        """Return the import, the object and the launch."""
        return (
            "from lightning.fabric import Fabric\n"
            f"fabric = Fabric(accelerator='cpu', devices={num_ranks}, strategy='ddp')\n"
            "fabric.launch()\n"
        )

    def loader(self, loader: str) -> str:
        """Set a loader up where it is built."""
        return f"fabric.setup_dataloaders({loader})"

    def setup(self, models: Sequence[str], optimizer: str, others: Sequence[str]) -> str:  # noqa: ARG002
        """Set a model up with its optimizer; several models each, then the optimizer; schedulers need nothing."""
        if len(models) == 1:
            return f"{models[0]}, {optimizer} = fabric.setup({models[0]}, {optimizer})"
        return "\n".join([*_modules(models), f"{optimizer} = fabric.setup_optimizers({optimizer})"])

    def setup_list(self, models: Sequence[str], optimizers: str, others: Sequence[str]) -> str:  # noqa: ARG002
        """Set each model and each optimizer of a list up."""
        return "\n".join([*_modules(models), f"{optimizers} = [fabric.setup_optimizers(one) for one in {optimizers}]"])


def _modules(models: Sequence[str]) -> list[str]:
    return [f"{model} = fabric.setup_module({model})" for model in models]


GUIDES: tuple[Guide, ...] = (Accelerate(), Fabric())
