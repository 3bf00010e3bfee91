"""The state of a training: models, optimizers and gradient scalers, under names that a later process finds again.

Objects have numbers in the order of their creation. A model is a module that no other module holds.
"""

import gc
import weakref
from functools import wraps
from typing import Any, Callable, Dict, Iterable, Iterator, List, Set, Tuple

import torch
from torch import nn

from .. import patches
from ..global_tensors import outputs
from ..global_tensors.tensors import map_tensors
from ..scaling_error import ScalingError
from . import attributes

_WHY = "A checkpoint names models and optimizers by the order in which the script makes them."
_SLOT = "optimizer-%d/%d/%s"


class Objects:
    """The modules, optimizers and scalers of a script, in the order of their creation."""

    def __init__(self) -> None:
        self._modules: "List[weakref.ref[Any]]" = []
        self._optimizers: "List[weakref.ref[Any]]" = []
        self._scalers: "List[weakref.ref[Any]]" = []

    def install(self) -> None:
        """Note each new object."""
        for kind, name, known in (
            (nn.Module, "__init__", self._modules),
            (nn.Module, "__setstate__", self._modules),  # a copy of a module
            (torch.optim.Optimizer, "__init__", self._optimizers),
            (torch.amp.GradScaler, "__init__", self._scalers),
        ):
            patches.replace(kind, name, _noting(getattr(kind, name), known), why=_WHY)

    def optimizers(self) -> List[torch.optim.Optimizer]:
        """Return the living optimizers."""
        return _living(self._optimizers)

    def models(self) -> List[nn.Module]:
        """Return the living modules that have tensors and that no other module holds."""
        modules = _living(self._modules)
        held = {id(child) for module in modules for child in module.children()}
        roots = [module for module in modules if id(module) not in held]
        return [root for root in roots if any(True for _ in root.parameters()) or any(True for _ in root.buffers())]

    def tensors(self) -> Dict[str, torch.Tensor]:
        """Return all tensors of the training by name; a tensor that several share has its first name."""
        gc.collect()  # a model that is garbage in one process may not be in another
        named: Dict[str, torch.Tensor] = {}
        seen = set()
        for number, model in enumerate(self.models()):
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    named["model-%d/%s" % (number, name)] = tensor.detach()
        named.update(of_optimizers(self.optimizers(), seen))
        return named

    def attributes(self) -> Dict[str, torch.Tensor]:
        """Return the tensors that modules keep as plain attributes."""
        return attributes.tensors(self.models())

    def put_attributes(self, saved: Dict[str, Any]) -> None:
        """Give the modules the attributes of a checkpoint."""
        attributes.put(self.models(), saved)

    def ids(self) -> Set[int]:
        """Return the ids of the tensors that have names of their own."""
        models = self.models()
        known = attributes.ids(models)
        for model in models:
            known.update(id(tensor) for tensor in [*model.parameters(), *model.buffers()])
        for optimizer in self.optimizers():
            for parameter in _parameters(optimizer):
                known.add(id(parameter))
                known.update(id(one) for one in optimizer.state.get(parameter, {}).values())
        return known

    def rest(self) -> Dict[str, Any]:
        """Return everything else: the options of optimizers, states that are no tensors, and the scalers."""
        optimizers = []
        for optimizer in self.optimizers():
            groups = [{key: one for key, one in group.items() if key != "params"} for group in optimizer.param_groups]
            slots = [
                {key: _told(value) for key, value in optimizer.state.get(parameter, {}).items()}
                for parameter in _parameters(optimizer)
            ]
            optimizers.append({"kind": type(optimizer).__name__, "groups": groups, "slots": slots})
        scalers = [scaler.state_dict() for scaler in _living(self._scalers)]
        return {
            "optimizers": optimizers,
            "scalers": scalers,
            "attributes": attributes.plain(self.models()),
            "ragged": {name: known for name, one in self._modules_by_name() if (known := outputs.ragged_of(one))},
        }

    def _modules_by_name(self) -> Iterator[Tuple[str, nn.Module]]:
        for number, model in enumerate(self.models()):
            for name, module in model.named_modules():
                yield "model-%d/%s" % (number, name), module

    def prepare(self, rest: Dict[str, Any]) -> None:
        """Make the slots of the optimizers, and set everything that is no tensor."""
        gc.collect()  # see tensors()
        optimizers = self.optimizers()
        kinds = [type(one).__name__ for one in optimizers], [one["kind"] for one in rest["optimizers"]]
        if kinds[0] != kinds[1]:
            raise ScalingError(
                "the script has the optimizers %s, and the checkpoint has %s"
                % tuple(", ".join(names) or "none" for names in kinds),
                "start the script without --resume",
            )
        for optimizer, saved in zip(optimizers, rest["optimizers"]):  # noqa: B905
            for group, options in zip(optimizer.param_groups, saved["groups"]):  # noqa: B905
                group.update(options)
            for parameter, slot in zip(_parameters(optimizer), saved["slots"]):  # noqa: B905
                parameter.grad = None
                if slot:
                    optimizer.state[parameter] = {key: _slot(value, parameter) for key, value in slot.items()}
        self.put_attributes(rest["attributes"])
        for name, module in self._modules_by_name():
            outputs.put_ragged(module, rest.get("ragged", {}).get(name, []))
        for scaler, state in zip(_living(self._scalers), rest["scalers"]):  # noqa: B905
            if state:
                scaler.load_state_dict(state)


def of_optimizers(optimizers: Iterable[Any], seen: Set[int]) -> Dict[str, torch.Tensor]:
    """Return the states of optimizers, or of what has their groups and states, and parameters that are not seen yet."""
    named: Dict[str, torch.Tensor] = {}
    for number, optimizer in enumerate(optimizers):
        for place, parameter in enumerate(_parameters(optimizer)):
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


def _noting(original: Callable[..., Any], known: "List[weakref.ref[Any]]") -> Callable[..., Any]:
    @wraps(original)
    def note(self: Any, *args: Any, **kwargs: Any) -> Any:
        known.append(weakref.ref(self))
        return original(self, *args, **kwargs)

    return note


def _living(known: "List[weakref.ref[Any]]") -> List[Any]:
    objects, seen = [], set()
    for reference in known:
        one = reference()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            objects.append(one)
    return objects


def _parameters(optimizer: Any) -> List[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _told(value: Any) -> Any:
    """Return a state as it is kept: a tensor by its shape, type and device, since its values are kept apart."""
    if isinstance(value, torch.Tensor):
        return ["tensor", tuple(value.shape), str(value.dtype).partition(".")[2], value.device.type]
    return ["value", map_tensors(value, lambda one: one.detach().cpu())]


def _slot(told: List[Any], parameter: torch.Tensor) -> Any:
    if told[0] == "value":  # perhaps a list of tensors, as LBFGS has
        return map_tensors(told[1], lambda one: one.to(parameter.device))
    device: Any = "cpu" if told[3] == "cpu" else parameter.device
    return torch.zeros(tuple(told[1]), dtype=getattr(torch, told[2]), device=device)


def split(name: str) -> Tuple[str, str]:
    """Return the object and the name within it.

    >>> split("model-0/fc.weight")
    ('model-0', 'fc.weight')
    """
    owner, _, rest = name.partition("/")
    return owner, rest
