"""Decide whether a script distributes itself, as far as reading can tell."""

from __future__ import annotations

from echelon.environment.rank_names import RANK_NAMES
from echelon.script.imports import Imports
from echelon.script.statements import CALLS_BACKWARD, CALLS_CHECKPOINT

# packages that distribute the work themselves, and names that only distributed scripts mention
_PACKAGES = (
    "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "deepspeed", "horovod", "tensorflow", "jax",
    "fairscale", "colossalai", "megatron", "torchtitan", "composer", "ray", "mpi4py", "echelon",
)  # fmt: skip
_OF_OTHER_ARRAYS = frozenset({"tensorflow", "jax"})
"""Packages that train no PyTorch model: a script with a PyTorch loop reads data with them, or writes summaries."""
_ON_ONE_DEVICE = frozenset({"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"})
"""Packages that distribute nothing on one device."""
_TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer")
"""The same of names."""
_NAMES = (
    "torch.distributed", "torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed",
    "torch.utils.data.DistributedSampler", "torch.utils.data.distributed",
    *_TRAINERS,
)  # fmt: skip


def how(imports: Imports) -> str:
    """Return the sign that the script distributes itself; empty if there is none."""
    imported = imports.uses | {name.partition(".")[0] for name in imports.local}
    if trains(imports):
        imported -= _OF_OTHER_ARRAYS
    package = next((name for name in _PACKAGES if name in imported), "")
    if package:
        return f"it imports {package}"
    name = next(
        (mention for mention in sorted(imports.mentions) for name in _NAMES if (mention + ".").startswith(name + ".")),
        "",
    )
    if name:
        return f"it mentions {name}"
    variable = next((name for name in sorted(RANK_NAMES) if "$" + name in imports.mentions), "")
    return f"it reads {variable}" if variable else ""


def has_trainer(imports: Imports) -> bool:
    """Say whether the script imports a framework that distributes itself on several devices, and not on one device."""
    imported = imports.uses | {name.partition(".")[0] for name in imports.local}
    return not _ON_ONE_DEVICE.isdisjoint(imported) or not imports.mentions.isdisjoint(_TRAINERS)


def trains(imports: Imports) -> bool:
    """Say whether the script trains with PyTorch in a loop of its own."""
    return "torch" in imports.uses and CALLS_BACKWARD in imports.mentions


def saves_with_echelon(imports: Imports) -> bool:
    """Say whether the script calls echelon.checkpoints(), or the method of its run."""
    imported = imports.uses | {name.partition(".")[0] for name in imports.local}
    return "echelon" in imported and not {"echelon.checkpoints", CALLS_CHECKPOINT}.isdisjoint(imports.mentions)
