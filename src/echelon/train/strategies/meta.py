"""Initialize models that were made on the meta device: each rank keeps only its own part.

All ranks draw the same initial weights module by module, and each rank keeps its part. So initial weights are equal
under every strategy, and no rank ever holds more than one whole module.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ...pytorch import internals
from . import blocks, norms, states
from .strategy import StrategyError

Initialize = Callable[[nn.Module], object]


def is_meta(model: nn.Module) -> bool:
    return any(one.is_meta for one in model.parameters())


def skeleton_of(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)


def materialize(parts: list[nn.Module], device: torch.device) -> None:
    """Allocate the weights of this rank on its device; tied weights stay tied."""
    for part in parts:
        ties = [names for names in _names_of_weights(part).values() if len(names) > 1]
        part.to_empty(device=device)
        for first, *aliases in ties:
            parameter = part.get_parameter(first)
            for name in aliases:
                blocks.replace(part, name, parameter)  # type: ignore[arg-type]


def _names_of_weights(part: nn.Module) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in part.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names


def draw(
    parts: list[nn.Module],
    skeleton: nn.Module,
    device: torch.device,
    initialize: Initialize | None,
    *,
    given: Mapping[str, torch.Tensor],
) -> None:
    """Initialize the weights and buffers that are not in the given state."""
    local = _everything(parts)
    for path, module in skeleton.named_modules():
        own = _own(module)
        names = [f"{path}.{name}" if path else name for name in own]
        if not own or all(name in given for name in names):
            continue
        init = initialize or _initializer_of(skeleton, module)
        if init is None:
            raise StrategyError(
                "{} is on the meta device, and {} has no method that initializes its weights".format(
                    ", ".join(names), type(module).__name__
                ),
                hint="add a method reset_parameters() to this class, or use run.parallelize(…, "
                "initialize=function_of_a_module)",
            )
        module.to_empty(device=device, recurse=False)
        with torch.no_grad():
            init(module)
            for name, value in zip(names, _own(module).values(), strict=False):
                if name in local and name not in given:
                    target = local[name]
                    norms.local(target).detach().copy_(states.part_of(value.detach(), target))
        module.to_empty(device="meta", recurse=False)


def _everything(parts: list[nn.Module]) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for part in parts:
        tensors.update({blocks.plain_name(name): one for name, one in part.named_parameters(remove_duplicate=False)})
        tensors.update({blocks.plain_name(name): one for name, one in part.named_buffers(remove_duplicate=False)})
    return tensors


def _own(module: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(module.named_parameters(recurse=False, remove_duplicate=False)),
        **dict(module.named_buffers(recurse=False, remove_duplicate=False)),
    }


def _initializer_of(root: nn.Module, module: nn.Module) -> Initialize | None:
    """Return the function that initializes a module: the model's own rule, or the module's method."""
    rule: Initialize | None = getattr(root, "_init_weights", None)  # Hugging Face's name, and nanoGPT's
    if callable(rule):
        if any(True for _ in module.buffers(recurse=False)) and not hasattr(module, "reset_parameters"):
            return None
        return rule
    for name in internals.layer_resets():
        method = getattr(module, name, None)
        if callable(method):
            return lambda _module: method()
    return None
