"""Environment variables that a script sets before an import: does the import read them?

A module that is imported before the fork does not see variables that the script sets later. If it reads one, the
import is left to the ranks.
"""

import sys

READ_WHEN_USED = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUBLAS_", "HIP_", "ROCR_", "NCCL_",
    "RCCL_", "GLOO_", "FI_", "UCX_", "MASTER_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TOKENIZERS_PARALLELISM",
    "WANDB_", "MIOPEN_", "DISPLAY",
)  # fmt: skip
# prefixes of other libraries' variables, which torch and numpy do not read
OTHERS = (
    "HF_",
    "HUGGINGFACE_",
    "TRANSFORMERS_",
    "MLFLOW_",
    "TF_",
    "XLA_",
    "JAX_",
    "COMET_",
    "NEPTUNE_",
    "AWS_",
    "RAY_",
)
INDIFFERENT = frozenset({"torch", "torchvision", "torchaudio", "numpy", "scipy"})


def is_read_on_import(key: str, *, top: str) -> bool:
    """Say whether importing the package `top` may depend on this variable; "" is an unknown variable."""
    if top in sys.stdlib_module_names:
        return False
    if key.startswith(READ_WHEN_USED):
        return False
    return not (top in INDIFFERENT and key.startswith(OTHERS))
