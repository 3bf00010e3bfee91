"""A script that is traced has one device and no other ranks: what would start a group of ranks says so."""

import sys
from typing import Any, Callable, Tuple

import torch.distributed as dist

from .. import patches

_WHY = "A trace is that of one device."


class Distributes(RuntimeError):
    """The script begins to distribute itself."""


def install() -> None:
    """Let init_process_group() fail before a library connects to anything."""
    if not dist.is_available():
        return
    patches.replace(dist, "init_process_group", _refuse, why=_WHY)
    patches.replace(dist.distributed_c10d, "init_process_group", _refuse, why=_WHY)


def _refuse(*_: Any, **__: Any) -> None:
    raise Distributes("init_process_group() is called")


def simplify_frameworks() -> None:
    """Replace what frameworks that are imported do with data or in C, and that takes nothing of the device."""
    for module, kind, name, replacement in _REPLACED:
        imported = sys.modules.get(module)
        owner: Any = getattr(imported, kind, None) if kind else imported
        if getattr(owner, name, replacement) is not replacement:
            patches.replace(owner, name, replacement, why=_WHY)


def _as_it_is(_: Any, tensor: Any, *__: Any, **___: Any) -> Any:
    return tensor


def _nothing(*_: Any, **__: Any) -> None:
    return None


_REPLACED: Tuple[Tuple[str, str, str, Callable[..., Any]], ...] = (
    ("accelerate.accelerator", "Accelerator", "pad_across_processes", _as_it_is),  # reads the lengths of all ranks
    ("accelerate.accelerator", "Accelerator", "save_model", _nothing),
    ("accelerate.accelerator", "Accelerator", "save_state", _nothing),
    ("transformers.modeling_utils", "PreTrainedModel", "save_pretrained", _nothing),  # safetensors writes in Rust
    ("safetensors.torch", "", "save_file", _nothing),
    ("safetensors.torch", "", "save_model", _nothing),
)
"""A module, a class of it or "", a name, and what takes its place."""
