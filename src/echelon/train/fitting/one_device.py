"""A script that is traced has one device and no other ranks: what would start a group of ranks says so.

A group of one rank exchanges nothing, so none is formed; of DistributedDataParallel the memory is left.
"""

import sys
from typing import Any, Callable, List, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .. import patches

_WHY = "A trace is that of one device."


class Distributes(RuntimeError):
    """The script begins to distribute itself."""


def install() -> None:
    """Let init_process_group() fail before a library connects to anything, except for a group of one rank."""
    if not dist.is_available():
        return
    groups_of_one: List[int] = []
    original = DistributedDataParallel.__init__

    def init_process_group(*_: Any, world_size: int = -1, **__: Any) -> None:
        if world_size != 1:
            raise Distributes("init_process_group() is called")
        groups_of_one.append(world_size)

    def wrap(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not groups_of_one:
            original(self, module, *args, **kwargs)
            return
        nn.Module.__init__(self)
        self.module = module
        self.require_backward_grad_sync, self.static_graph = True, False
        self._get_ddp_logging_data = dict  # Lightning reads it at the end
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        are_gradients = kwargs.get("gradient_as_bucket_view", False)
        self.buckets = [] if are_gradients else [torch.empty_like(one, requires_grad=False) for one in weights]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    for owner in (dist, dist.distributed_c10d):
        patches.replace(owner, "init_process_group", init_process_group, why=_WHY)
    patches.replace(DistributedDataParallel, "__init__", wrap, why=_WHY)
    patches.replace(DistributedDataParallel, "forward", forward, why=_WHY)


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
