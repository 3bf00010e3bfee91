"""Decide whether a script distributes itself, as far as reading can tell."""

from __future__ import annotations

from collections.abc import Iterator

from echelon.environment.variables import RANK_NAMES
from echelon.script.hand_updates import CHANGES_WEIGHTS, DESCENDS
from echelon.script.imports import Imports
from echelon.script.statements import CALLS_BACKWARD, CALLS_CHECKPOINT, CALLS_STEP

# packages that distribute the work themselves, and names that only distributed scripts mention
_PACKAGES = (
    "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "deepspeed", "horovod", "tensorflow", "jax",
    "fairscale", "colossalai", "megatron", "torchtitan", "composer", "ray", "mpi4py", "echelon",
)  # fmt: skip
_OF_OTHER_ARRAYS = frozenset({"tensorflow", "jax"})
"""Packages that train no PyTorch model: a script with a PyTorch loop reads data with them, or writes summaries."""
_ON_ONE_DEVICE = frozenset({"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"})
"""Packages that distribute nothing on one device."""
_TRAINERS = ("transformers.Trainer", "transformers.Seq2SeqTrainer")  # the same of names
_NAMES = (
    "torch.distributed", "torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed",
    "torch.utils.data.DistributedSampler", "torch.utils.data.distributed",
    *_TRAINERS,
)  # fmt: skip
_OPTIMIZERS = "torch.optim"
_GRADIENTS = ("torch.autograd.grad", "torch.autograd.functional", "torch.func", "functorch")
"""Functions that return gradients, and packages of them."""
_ALL_WEIGHTS = "torch.nn.utils.vector_to_parameters"
NEEDS = "calls no backward() and steps no optimizer of torch.optim"


def how(imports: Imports) -> str:
    """Return the sign that the script distributes itself; empty if there is none."""
    imported = imports.all_uses
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
    return not _ON_ONE_DEVICE.isdisjoint(imports.all_uses) or not imports.mentions.isdisjoint(_TRAINERS)


def trains(imports: Imports) -> bool:
    """Say whether the script trains with PyTorch in a loop of its own, with gradients or without."""
    return bool(sign_of_training(imports))


def sign_of_training(imports: Imports) -> str:
    """Return what the script does that only a training does; empty if there is nothing."""
    if "torch" not in imports.uses:
        return ""
    if CALLS_BACKWARD in imports.mentions:
        return "calls backward()"
    has_optimizer = CALLS_STEP in imports.mentions and any(_mentioned(imports, _OPTIMIZERS))
    return "steps an optimizer of torch.optim" if has_optimizer else ""


def update_by_hand(imports: Imports) -> str:
    """Return how a script without backward() and optimizers changes weights; empty if it does not."""
    if "torch" not in imports.uses or trains(imports):
        return ""
    if not {CHANGES_WEIGHTS, DESCENDS}.isdisjoint(imports.mentions):
        gradient = next((name for package in _GRADIENTS for name in sorted(_mentioned(imports, package))), "")
        if gradient:
            return f"it changes weights with gradients of {gradient}"
    if CHANGES_WEIGHTS in imports.mentions or _ALL_WEIGHTS in imports.mentions:
        return "it changes weights by hand"
    return ""


def _mentioned(imports: Imports, package: str) -> Iterator[str]:
    """Yield the names that the script mentions of a package; `package` may be such a name itself."""
    return (name for name in imports.mentions if (name + ".").startswith(package + "."))


def saves_with_echelon(imports: Imports) -> bool:
    """Say whether the script calls echelon.checkpoints(), or the method of its run."""
    return "echelon" in imports.all_uses and not {"echelon.checkpoints", CALLS_CHECKPOINT}.isdisjoint(imports.mentions)
