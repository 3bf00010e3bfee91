"""The state of a training: models, optimizers and gradient scalers, under names that a later process finds again.

Objects have numbers in the order of their creation. A model is a module that no other module holds.
"""

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch import nn

from ...checkpoint import safetensors
from ...checkpoint.tensors_file import SavedTensor
from .. import events, patches
from ..checkpoints.objects import empty_state
from ..global_tensors import outputs
from ..global_tensors.tensors import map_tensors
from ..model_parallel.absent_weights import AbsentWeight
from ..modules import weights_of
from ..scaling_error import ScalingError
from ..strategies.blocks import plain_name
from ..wire import messages
from . import same_script
from .tape import is_ours_name

_WHY = "A checkpoint names models and optimizers by the order in which the script makes them."
_SLOT = "optimizer-%d/%d/%s"


class ScriptObjects:
    """The modules, optimizers and scalers of a script, in the order of their creation."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._scalers: list[weakref.ref[Any]] = []

    def install(self) -> None:
        for kind, name, known in (
            (nn.Module, "__init__", self._modules),
            (nn.Module, "__setstate__", self._modules),  # a copy of a module
            (torch.amp.GradScaler, "__init__", self._scalers),
        ):
            patches.replace(kind, name, _noting(getattr(kind, name), known), why=_WHY)
        events.made.listen("names", lambda optimizer: self._optimizers.append(weakref.ref(optimizer)), why=_WHY)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return _living(self._optimizers)

    def models(self) -> list[nn.Module]:
        """Return the living modules that have tensors and that no other module holds, without those of echelon."""
        modules = _living(self._modules)
        held = {id(child) for module in modules for child in module.children()}
        roots = [module for module in modules if id(module) not in held and not _is_ours(module)]
        return [root for root in roots if any(True for _ in root.parameters()) or any(True for _ in root.buffers())]

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors of the training by name; a tensor that several share has its first name."""
        gc.collect()  # a model that is garbage in one process may not be in another
        named: dict[str, torch.Tensor] = {}
        seen = set()
        for number, model in enumerate(self.models()):
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                if id(tensor) not in seen and not _is_absent(tensor):
                    seen.add(id(tensor))
                    named[f"model-{number}/{plain_name(name)}"] = tensor.detach()
        named.update(of_optimizers(self.optimizers(), seen))
        return named

    def ids(self) -> set[int]:
        """Return the ids of the tensors that have names of their own."""
        models = self.models()
        known = same_script.ids(models)
        for model in models:
            known.update(id(tensor) for tensor in [*model.parameters(), *model.buffers()])
        for optimizer in self.optimizers():
            for parameter in weights_of(optimizer):
                known.add(id(parameter))
                known.update(id(one) for one in optimizer.state.get(parameter, {}).values())
        return known

    def rest(self) -> dict[str, Any]:
        """Return everything else: the options of optimizers, states that are no tensors, and the scalers."""
        optimizers = []
        names = self.names_of_weights()
        for optimizer in self.optimizers():
            groups = [{key: one for key, one in group.items() if key != "params"} for group in optimizer.param_groups]
            slots = [
                {
                    key: map_tensors(value, lambda one: one.detach().cpu())  # LBFGS has lists of tensors
                    for key, value in optimizer.state.get(parameter, {}).items()
                    if not isinstance(value, torch.Tensor)
                }
                for parameter in weights_of(optimizer)
            ]
            if any(map(_is_absent, weights_of(optimizer))):
                _refuse_values(optimizer, slots)
            weights = [names.get(id(one), "") for one in weights_of(optimizer)]
            told = {"kind": type(optimizer).__name__, "groups": groups, "slots": slots, "weights": weights}
            optimizers.append(told)
        scalers = [scaler.state_dict() for scaler in _living(self._scalers)]
        return {
            "optimizers": optimizers,
            "scalers": scalers,
            "attributes": same_script.plain(self.models()),
            "ragged": {name: known for name, one in self._modules_by_name() if (known := outputs.ragged_of(one))},
        }

    def refuse_different_attributes(self) -> None:
        """Refuse attributes of modules that differ between the stages of a pipeline: a checkpoint has one of each."""
        models = self.models()
        if not any(_is_absent(one) for model in models for one in model.parameters()):
            return
        marks = {name: [*one.shape, float(one.double().sum())] for name, one in same_script.tensors(models).items()}
        every: list[dict[str, Any]] = messages.gather({**same_script.plain(models), **marks})
        for name, value in every[0].items():
            if any(theirs.get(name) != value for theirs in every):
                raise ScalingError(
                    f"--checkpoint-every cannot save {name[len(same_script.PREFIX) :]}: the ranks of a "
                    "pipeline have other values of it",
                    "keep it outside of the model, or in a buffer; or echelon run --scale data …",
                )

    def names_of_weights(self) -> dict[int, str]:
        """Return the first name of each weight; DDP makes a module that has them, too."""
        names: dict[int, str] = {}
        for number, model in enumerate(self.models()):
            for name, weight in model.named_parameters():
                names.setdefault(id(weight), f"model-{number}/{plain_name(name)}")
        return names

    def weights(self) -> dict[str, torch.Tensor]:
        return {
            f"model-{number}/{plain_name(name)}": weight
            for number, model in enumerate(self.models())
            for name, weight in model.named_parameters(remove_duplicate=False)
        }

    def trained(self) -> dict[str, torch.Tensor]:
        names = self.names_of_weights()
        return {
            names.get(id(weight)) or _SLOT % (number, place, "parameter"): weight
            for number, optimizer in enumerate(self.optimizers())
            for place, weight in enumerate(weights_of(optimizer))
            if not _is_absent(weight)
        }

    def _modules_by_name(self) -> Iterator[tuple[str, nn.Module]]:
        for number, model in enumerate(self.models()):
            for name, module in model.named_modules():
                yield f"model-{number}/{plain_name(name)}", module

    def drop_gradients(self) -> None:
        """Take away the gradients without values that a repeated loop has made."""
        for optimizer in self.optimizers():
            for parameter in weights_of(optimizer):
                parameter.grad = None

    def other_settings(self, rest: dict[str, Any]) -> list[str]:
        """Return in words the settings of optimizers that the checkpoint has with other numbers."""
        return [
            text
            for optimizer, told in zip(self.optimizers(), rest["optimizers"], strict=False)
            for group, saved in zip(optimizer.param_groups, told["groups"], strict=False)
            for text in same_script.other_settings(told["kind"], group, saved)
        ]

    def prepare(self, rest: dict[str, Any], saved: Mapping[str, SavedTensor]) -> None:
        """Make the states of optimizers that are saved, without values, and set everything that is no tensor."""
        gc.collect()  # see tensors()
        optimizers = self.optimizers()
        kinds = [type(one).__name__ for one in optimizers], [one["kind"] for one in rest["optimizers"]]
        if kinds[0] != kinds[1]:
            raise ScalingError(
                "the script has the optimizers {}, and the checkpoint has {}".format(
                    *tuple(", ".join(names) or "none" for names in kinds)
                ),
                "start the script without --resume",
            )
        names = self.names_of_weights()
        for optimizer, told in zip(optimizers, rest["optimizers"], strict=False):
            _order_as(optimizer, told.get("weights", []), names)
            for group, options in zip(optimizer.param_groups, told["groups"], strict=False):
                group.update(options)
            for parameter, slot in zip(weights_of(optimizer), told["slots"], strict=False):
                if slot:
                    optimizer.state[parameter] = map_tensors(dict(slot), lambda one: one.to(parameter.device))  # noqa: B023
        _make_states(optimizers, saved)
        same_script.put(self.models(), rest["attributes"])
        for name, module in self._modules_by_name():
            outputs.put_ragged(module, rest.get("ragged", {}).get(name, []))
        for scaler, state in zip(_living(self._scalers), rest["scalers"], strict=False):
            if state:
                scaler.load_state_dict(state)


def of_optimizers(optimizers: Iterable[Any], seen: set[int]) -> dict[str, torch.Tensor]:
    """Return the states of optimizers, or of what has their groups and states, and parameters that are not seen yet."""
    named: dict[str, torch.Tensor] = {}
    for number, optimizer in enumerate(optimizers):
        for place, parameter in enumerate(weights_of(optimizer)):
            if _is_absent(parameter):
                continue  # its rank has it
            if id(parameter) not in seen:
                seen.add(id(parameter))
                named[_SLOT % (number, place, "parameter")] = parameter.detach()
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    named[_SLOT % (number, place, key)] = value
    return named


def is_weight(name: str) -> bool:
    """Say whether a name is that of a weight or a buffer, and not of a state of an optimizer.

    >>> is_weight("model-0/0.bias"), is_weight("optimizer-0/3/parameter"), is_weight("optimizer-0/3/exp_avg")
    (True, True, False)
    """
    return name.startswith("model-") or name.endswith("/parameter")


def _noting(original: Callable[..., Any], known: "list[weakref.ref[Any]]") -> Callable[..., Any]:
    @wraps(original)
    def note(self: object, *args: object, **kwargs: object) -> Any:
        known.append(weakref.ref(self))
        return original(self, *args, **kwargs)

    return note


def _living(known: "list[weakref.ref[Any]]") -> list[Any]:
    objects, seen = [], set()
    for reference in known:
        one = reference()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            objects.append(one)
    return objects


def _is_ours(module: nn.Module) -> bool:
    """Say whether echelon has made a module for the weights of the script's: it does so in the first step."""
    return is_ours_name(type(getattr(module, "module", module)).__module__)


def _order_as(optimizer: Any, saved: Sequence[str], names: Mapping[int, str]) -> None:
    """Give the weights of each group the order in which they were saved: a set has another one in each process."""
    begin = 0
    for group in optimizer.param_groups:
        wanted = saved[begin : begin + len(group["params"])]
        begin += len(wanted)
        known = {names.get(id(one), ""): one for one in group["params"]}
        if len(known) == len(wanted) and set(known) == set(wanted):
            group["params"][:] = [known[name] for name in wanted]


def _is_absent(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, AbsentWeight) and tensor.shown is None


def _refuse_values(optimizer: torch.optim.Optimizer, slots: Sequence[Mapping[str, Any]]) -> None:
    """Refuse states that are no tensors where each rank has those of its own weights: rank 0 writes for all."""
    for key, value in (entry for slot in slots for entry in slot.items()):
        if value is not None:
            raise ScalingError(
                f"--checkpoint-every cannot save {type(optimizer).__name__} with --scale pipeline: it keeps "
                f"{key} as {type(value).__name__}, and not as a tensor",
                "echelon run --scale data …, or --scale fsdp",
            )


def _make_states(optimizers: Sequence[torch.optim.Optimizer], saved: Mapping[str, SavedTensor]) -> None:
    """Give optimizers empty states like the saved ones, in the order of their weights."""
    kept: dict[str, dict[str, SavedTensor]] = {}
    for name, one in saved.items():
        owner, _, key = name.rpartition("/")
        kept.setdefault(owner, {})[key] = one
    for number, optimizer in enumerate(optimizers):
        for place, parameter in enumerate(weights_of(optimizer)):
            if _is_absent(parameter):
                continue
            for key, one in kept.get((_SLOT % (number, place, ""))[:-1], {}).items():
                if key != "parameter":
                    dtype = safetensors.dtype_of(one.dtype)
                    optimizer.state[parameter][key] = empty_state(key, tuple(one.shape), dtype, parameter, optimizer)
