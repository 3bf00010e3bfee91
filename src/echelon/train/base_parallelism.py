"""The base class of parallelisms: it knows the trained parameters, and makes gradients those of one device."""

import hashlib
import weakref
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.clip_grad import clip_grad_norm_  # itself, before it is replaced

from ..orders.scale import ScaleOptions
from . import modules
from .global_tensors.model_calls import ModelCalls
from .gradient_hooks import GradientObservers
from .rng.generators import Generators
from .scaling_error import ScalingError
from .wire import messages
from .wire.gather import is_sharded
from .wire.world import World


class Setup(NamedTuple):
    world: World
    options: ScaleOptions
    say: Callable[[str], None]
    """Tell the person something, on rank 0."""
    generators: Generators
    is_repeatable: bool = False
    """Whether a run that goes on from a checkpoint sums gradients in the same order."""
    megabytes: float = 0.0
    """The size of the gradients that are sent together, if no option says it; 0: measurements choose it."""


class Parallelism:
    """A way in which ranks share a training.

    A subclass defines what a rank computes (`kind_of_calls`), what a backward pass does (`backward`), and every other
    difference from one device. `orders.scale.KINDS` has the rows of echelon's classes; a user's is FILE.py:CLASS.
    """

    kind_of_calls: type[ModelCalls]
    """The class that handles calls of a script's models; the training makes its instance."""
    shares_batches = True
    """Whether each rank computes its own samples of a batch, and not the whole batch."""
    cuts_draws = True
    """Whether random numbers for the whole batch are drawn in a model and cut to the samples of a rank."""
    draws_as_one = False
    """Whether ranks draw the same numbers in a model as one device, without any cut."""
    keeps_dropout = False
    """Whether dropout stays on in the first step, which is compared with one device."""
    is_as_one_device = True
    """Whether the training equals that of one device, so that steps can be compared."""
    trains_alone = False
    """Whether ranks exchange nothing in most steps."""
    calls_need_all_ranks = False
    """Whether a rank can compute a model only together with all others."""

    def __init__(self, setup: Setup) -> None:
        self.world = setup.world
        self._options = setup.options
        self._say = setup.say
        self._optimizers: list[Callable[[], torch.optim.Optimizer | None]] = []  # in the order in which they are made
        self._parameters: list[nn.Parameter] = []
        self._agreed: dict[int, list[nn.Parameter]] = {}
        """The weights of each optimizer, by its place, when the ranks last agreed on the optimizers."""
        self._shared: set[int] = set()
        """The identities of the weights that have the values of rank 0."""
        self.num_steps = 0
        self.is_local = False
        """Whether a gradient lacks the other ranks' part, to which later backward passes of this step will add."""
        self.observers = GradientObservers()

    # Methods that a subclass defines

    def headline(self) -> str:
        """Return the line that says, at the beginning, how the script is scaled."""
        raise NotImplementedError

    def install(self, run: object) -> None:
        """Hook the functions that scripts call besides models, losses and optimizers; `run` is the Training."""

    def apply(self) -> None:
        """Change models and optimizers for this parallelism, if there are trained weights that it has not seen."""

    def backward(self, loss: object, run_backward: Callable[[torch.Tensor], None], calls: ModelCalls) -> None:
        """Run backward() so that gradients are those of the global batch."""
        raise NotImplementedError

    def clip_grad_norm(self) -> Callable[..., object]:
        """Return the replacement for torch.nn.utils.clip_grad_norm_; gradients are those of the global batch."""
        return clip_grad_norm_

    def reduce(self) -> None:
        """Make gradients those of the global batch before a script reads them, if that is still due."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        """Make gradients those of the global batch before an optimizer uses them."""
        self.num_steps += 1

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice that an optimizer has stepped."""

    def note_zero(self) -> None:
        """Notice that gradients are cleared."""

    def sync_weights(self, module: nn.Module | None = None) -> None:
        """Give all ranks the same weights before a script reads the weights of a module, or all weights."""

    def current_parameter(self, parameter: object) -> Any:
        """Return the current parameter for a parameter that a script kept from before a change."""
        return parameter

    def shown(self) -> AbstractContextManager[None]:
        """Give every rank all weights, gradients and states, or its part of each, inside of a with block."""
        return nullcontext()

    def learnt(self) -> dict[str, object]:
        """Return what the steps so far have shown about the training, as plain data for a checkpoint."""
        return {}

    def go_on(self, learnt: dict[str, object]) -> None:
        """Train on as the run did that has learnt this."""

    def continue_as_one_device(self) -> None:
        """Continue as one device."""
        self.world = self.world._replace(size=1)

    # The trained parameters

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        if all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    @property
    def has_optimizers(self) -> bool:
        return any(known() is not None for known in self._optimizers)

    def known_optimizers(self) -> list[torch.optim.Optimizer]:
        return [optimizer for known in self._optimizers if (optimizer := known()) is not None]

    def parameters(self) -> list[nn.Parameter]:
        """Return the trained parameters, each once, in the order of the optimizers' groups."""
        every = [one for place in range(len(self._optimizers)) for one in self._parameters_at(place)]
        return list({id(parameter): parameter for parameter in every if parameter.requires_grad}.values())

    def _parameters_at(self, place: int) -> list[nn.Parameter]:
        """Return the weights of the optimizer at a place; if this rank has freed it, those that it had."""
        optimizer = self._optimizers[place]()
        if optimizer is None:
            return self._agreed.get(place, [])
        return modules.weights_of(optimizer)

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
        return [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]

    def place_of(self, optimizer: torch.optim.Optimizer) -> int:
        """Return an optimizer's place in the order in which all ranks made them."""
        self.add(optimizer)
        return next(place for place, known in enumerate(self._optimizers) if known() is optimizer)

    def all_but(self, places: Collection[int]) -> list[list[nn.Parameter]]:
        """Return the parameters of each existing optimizer, without the optimizers at these places."""
        optimizers = [known() for place, known in enumerate(self._optimizers) if place not in places]
        return [self.parameters_of(optimizer) for optimizer in optimizers if optimizer is not None]

    def known_parameters(self) -> list[nn.Parameter]:
        return self._parameters

    def prepare(self) -> None:
        """Agree with the other ranks on the parameters; new parameters get the values of rank 0."""
        parameters = self.parameters()
        if self.world.size == 1 or not parameters:
            return
        new = [parameter for parameter in parameters if id(parameter) not in self._shared]
        is_new = bool(new) or any(place not in self._agreed for place in range(len(self._optimizers)))
        if not is_new and {id(one) for one in parameters} == {id(one) for one in self._parameters}:
            return
        refuse_several_devices(parameters)
        for optimizer in self.agreed_optimizers() if is_new else ():
            if any(id(parameter) not in self._shared for parameter in self.parameters_of(optimizer)):
                _order_alike(optimizer)
        for parameter in self.parameters():
            if id(parameter) not in self._shared and not is_sharded(parameter):
                dist.broadcast(parameter.data, 0)  # .data: a graph that waits for its backward() does not notice
        self._remember()
        self._forget_parameters()

    def agreed_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that all ranks still have; forget those that some rank has freed, at any time."""
        own = {place: optimizer for place, known in enumerate(self._optimizers) if (optimizer := known()) is not None}
        every = messages.gather(sorted(own))
        for place in range(len(self._optimizers)):
            if any(place not in of_rank for of_rank in every):
                self._optimizers[place] = _freed
                self._agreed[place] = []
                own.pop(place, None)
        return list(own.values())

    def _remember(self) -> None:
        self._parameters = self.parameters()
        self._agreed = {place: self._parameters_at(place) for place in range(len(self._optimizers))}
        held = {id(parameter) for of_place in self._agreed.values() for parameter in of_place}
        self._shared = (self._shared & held) | {id(parameter) for parameter in self._parameters}

    def _forget_parameters(self) -> None:
        """Drop the objects that were made from the former parameters."""


def _freed() -> None:
    """Stand for an optimizer that some rank has freed."""


def _order_alike(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer's weights the same order on all ranks: a script may have taken them from a set."""
    known = modules.places()
    groups = [group["params"] for group in optimizer.param_groups]
    places = [[known.get(id(one), ()) for one in group] for group in groups]
    shapes = [[tuple(one.shape) for one in group] for group in groups]
    marks = messages.gather([_digest(places), _digest(list(map(sorted, places))), _digest(shapes)])
    alike = (len(set(marks_of_ranks)) == 1 for marks_of_ranks in zip(*marks, strict=True))
    is_order_alike, are_places_alike, are_shapes_alike = alike
    if is_order_alike or (are_shapes_alike and not are_places_alike):  # or some module is on one rank alone
        return
    if not are_places_alike or any(len(set(one)) < len(one) for one in places):
        raise ScalingError(
            f"the ranks have the weights of {type(optimizer).__name__} in different orders",
            "give the optimizer lists of weights, for example list(model.parameters()), and no set",
        )
    for group in groups:
        group.sort(key=lambda one: known.get(id(one), ()))


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def refuse_several_devices(parameters: list[nn.Parameter]) -> None:
    devices = sorted({str(parameter.device) for parameter in parameters})
    if len(devices) > 1:
        raise ScalingError(
            "the model has parameters on several devices: {}".format(", ".join(devices)),
            "put the whole model on one device: each rank has its own device, and echelon run --scale fsdp … "
            "shards the model over them",
        )
