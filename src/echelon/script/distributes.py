"""Whether a script distributes itself, as far as reading it can tell."""

from __future__ import annotations

from echelon.script.imports import Imports

# packages whose use means that somebody else shares the work out, and names that only such scripts mention
_PACKAGES = (
    "accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "deepspeed", "horovod", "tensorflow", "jax",
    "fairscale", "colossalai", "megatron", "torchtitan", "composer", "ray", "mpi4py",
)  # fmt: skip
_NAMES = (
    "torch.distributed", "torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed",
    "torch.multiprocessing.spawn", "torch.utils.data.DistributedSampler", "torch.utils.data.distributed",
    "transformers.Trainer", "transformers.Seq2SeqTrainer", "echelon.start",
)  # fmt: skip


def how(imports: Imports) -> str:
    """Return what shows that the script distributes itself; empty where nothing does."""
    package = next((name for name in _PACKAGES if name in imports.uses), "")
    if package:
        return f"it imports {package}"
    name = next(
        (mention for mention in sorted(imports.mentions) for name in _NAMES if (mention + ".").startswith(name + ".")),
        "",
    )
    return f"it mentions {name}" if name else ""
