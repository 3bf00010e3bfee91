"""Find the repeated blocks of a model; they are checkpointed, compiled, sharded and placed on stages one by one."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ...pytorch import distributed, internals
from ..function_types import Kwargs
from .strategy import StrategyError

STAGE = "echelon_stage."
WRAPPERS = (STAGE, "module.", "_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.")


def find(model: nn.Module, names: Sequence[str] = ()) -> dict[str, nn.Module]:
    """Return the blocks by name, in the model's order: the named modules, or the repeated modules of lists."""
    if names:
        return {name: _named(model, name) for name in names}
    blocks: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if any(name.startswith(known + ".") for known in blocks):
            continue  # inside of a block
        for child_name, child in _repeated(module):
            blocks[f"{name}.{child_name}" if name else child_name] = child
    return blocks


def need(model: nn.Module, names: Sequence[str], wish: str) -> dict[str, nn.Module]:
    """Return the blocks; refuse a model without repeated blocks."""
    blocks = find(model, names)
    if not blocks:
        children = [name for name, child in model.named_children() if any(True for _ in child.parameters())]
        raise StrategyError(
            f"{wish} needs blocks that repeat, but {type(model).__name__} has none: no ModuleList or Sequential holds "
            "two modules of the same kind",
            hint=f"name the blocks: run.parallelize(model, strategy, blocks={children!r})",
        )
    return blocks


def tied(model: nn.Module) -> "dict[int, tuple[str, ...]]":
    names: dict[int, tuple[str, ...]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)] = (*names.get(id(parameter), ()), plain_name(name))
    return {key: ones for key, ones in names.items() if len(ones) > 1}


def plain_name(name: str) -> str:
    """Return a weight's name in the model as it was written."""
    for wrapper in WRAPPERS:
        name = name.replace("." + wrapper, ".")
        while name.startswith(wrapper):
            name = name[len(wrapper) :]
    return name


def replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, module)


def _repeated(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the children of a list, or of a sequence of composed modules, if two of them have the same class."""
    if not isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
        return []
    children = [(name, one) for name, one in module.named_children() if any(True for _ in one.parameters())]
    if isinstance(module, nn.Sequential):
        children = [(name, one) for name, one in children if any(True for _ in one.children())]
    kinds = [type(one) for _, one in children]
    return children if len(kinds) > len(set(kinds)) else []


def _named(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        names = [one for one, _ in model.named_modules() if one and one.count(".") < 2]
        raise StrategyError(
            f"{type(model).__name__} has no module {name!r}", hint="one of {}".format(", ".join(names[:20]))
        ) from None


def apply(model: nn.Module, model_blocks: dict[str, nn.Module], kind: str) -> None:
    """Wrap each block: "full" keeps only its input, "selective" also the results of matrix products and attention."""
    settings: Kwargs = {}
    if kind == "selective":
        from torch.utils.checkpoint import create_selective_checkpoint_contexts

        settings["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    for name, block in model_blocks.items():
        replace(model, name, distributed.checkpointed(block, **settings))


def _policy(_context: object, operation: object, *_args: object, **_kwargs: object) -> Any:
    """Keep results that are expensive to compute again: matrix products and attention."""
    from torch.utils.checkpoint import CheckpointPolicy

    return CheckpointPolicy.MUST_SAVE if operation in _dear() else CheckpointPolicy.PREFER_RECOMPUTE


def _dear() -> "set[Any]":
    aten = torch.ops.aten
    products = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)
    return {*products, *internals.attention_operations()}
