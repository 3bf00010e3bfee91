"""--scale pipeline: each rank computes some of the layers, and holds only their weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...pytorch import internals
from .. import patches
from ..base_parallelism import Setup
from ..function_types import Args, Function, Kwargs, StateDict
from ..global_tensors.tensors import tensors_of
from ..model_parallel.absent_weights import WITH_THE_BATCH, AbsentWeight, stand_in
from ..model_parallel.micro_batches import PARTS_PER_RANK, MicroBatches, form_of, gives_rows, parts_of
from ..model_parallel.stage import SHARED, Stage, StageLayout
from ..modules import weights_of
from ..scaling_error import ScalingError
from ..strategies import blocks, stages
from ..strategies.strategy import Strategy, StrategyError
from ..wire import messages
from .model_parallel import ModelParallel, refuse_batch_norms, refusing


class Pipeline(ModelParallel):
    """Places the blocks of models on ranks, and leaves the models unchanged."""

    what = "computes some of the layers"
    draws_as_one = False
    keeps_dropout = False

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._micro_batches: dict[int, MicroBatches] = {}
        self._owners: list[Any] = []
        """The weights that only one rank holds, each with that rank."""
        self._is_shown = False

    @property
    def strategy(self) -> Strategy:
        return Strategy(pipeline=self.world.size, accumulation=self.world.size, schedule="gpipe")

    def _worth_it(self, roots: list[nn.Module]) -> list[nn.Module]:
        return self._with_blocks(roots, lambda root: bool(blocks.find(root)))

    def refuse_without_blocks(self, root: nn.Module) -> None:
        stages.begins(root, blocks.need(root, (), "--scale pipeline"), self.strategy)

    def split(self, root: nn.Module) -> None:
        """Refuse a model that cannot be placed on ranks; its first forward pass places it."""
        self.refuse_without_blocks(root)
        needs = "the statistics of the whole batch, but a pipeline computes a few rows at a time"
        refuse_batch_norms(root, needs, "use GroupNorm or LayerNorm")

    def compute(self, original: Function, module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        if id(module) not in self._micro_batches:
            if not any(module is root for root in self.roots):
                self._refuse_part(module)
                return original(module, *args, **kwargs)
            if not torch.is_grad_enabled():
                return original(module, *args, **kwargs)  # every rank still has the whole model
            with refusing():
                self._lay(module, args, kwargs)
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors_of(args, kwargs)):
            raise ScalingError(
                f"{type(module).__name__} gets an input that needs a gradient, but a pipeline does not send this "
                "gradient back to every rank",
                "move the computation of this input into the model; or " + WITH_THE_BATCH,
            )
        with self._generators.in_own():
            return self._micro_batches[id(module)].call(original, args, kwargs)

    def _refuse_part(self, module: nn.Module) -> None:
        inner = {id(one): root for root in self.roots for one in root.parameters()}
        for parameter in module.parameters():
            if id(parameter) in inner:
                raise ScalingError(
                    f"the script calls {type(module).__name__} alone, but it is a part of "
                    f"{type(inner[id(parameter)]).__name__}, whose layers are on several ranks",
                    "call the whole model; or --scale tensor, or " + WITH_THE_BATCH,
                )

    def _lay(self, root: nn.Module, args: object, kwargs: object) -> None:
        """Place a model on ranks, by a forward pass over a few rows of its first batch."""
        number = PARTS_PER_RANK * self.world.size
        some = parts_of(args, kwargs, number)[0]
        model_blocks = blocks.find(root)
        buffers = _buffers(root)
        with self._generators.kept():
            layout = StageLayout(root, model_blocks, *some)
        _refuse_changed(root, buffers)
        layout.cut(stages.begins(root, model_blocks, self.strategy))
        rows = next((one.size(0) for one in tensors_of(*some) if one.dim()), 0)
        if not gives_rows(layout.output, rows):
            number = 1
            self._say(
                f"note: {type(root).__name__} does not return a row for each sample (it may return a loss): its batch "
                "stays whole, and the ranks compute one after another"
            )
        shared = self._keep_own(root, layout.stages_of(root))
        stage = Stage(root, layout.forward_of(self.world.rank, self.world.device))
        self._micro_batches[id(root)] = MicroBatches(stage, self.world, shared, {form_of(args, kwargs): number})

    def _keep_own(self, root: nn.Module, stages_of: dict[str, int]) -> list[nn.Parameter]:
        """Free the weights that only other ranks use; return the weights that several stages use."""
        made: dict[int, nn.Parameter] = {}
        before = dict(root.named_parameters(remove_duplicate=False))
        for name, parameter in before.items():
            stage = stages_of[name]
            if stage not in (SHARED, self.world.rank):
                kept = made.setdefault(id(parameter), stand_in(parameter, f"{type(root).__name__}.{name}"))
                owner, _, leaf = name.rpartition(".")
                internals.weights(root.get_submodule(owner))[leaf] = kept
        after = dict(root.named_parameters())
        self._owners += [(after[name], stages_of[name]) for name in after if stages_of[name] != SHARED]
        self.follow(before, dict(root.named_parameters(remove_duplicate=False)))
        self._forget_states()
        return [after[name] for name in after if stages_of[name] == SHARED]

    def _forget_states(self) -> None:
        for optimizer in self.optimizers():
            state = {} if optimizer is None else optimizer.state
            for parameter in [one for one in state if isinstance(one, AbsentWeight)]:
                del state[parameter]

    def are_parts(self, gradients: Sequence[Any]) -> list[bool]:
        """Return for each gradient whether it belongs to a weight that only this rank holds."""
        own = {id(parameter.grad) for parameter, rank in self._owners if rank == self.world.rank}
        return [id(one) in own for one in gradients]

    def has_part_of(self, module: nn.Module) -> bool:
        known = {id(parameter) for parameter, _ in self._owners}
        return any(id(one) in known for one in module.parameters())

    # Weights and states that a script reads

    @contextmanager
    def shown(self, *, values: bool = True, gradients: bool = True, states: bool = True) -> Iterator[None]:
        """Give every rank all weights, gradients and optimizer states inside of a with block."""
        if self._is_shown or self.is_alone:
            yield
            return
        self._is_shown = True
        try:
            self._show(values=values, gradients=gradients, states=states)
            yield
        finally:
            self._is_shown = False
            for parameter, _ in self._owners:
                if isinstance(parameter, AbsentWeight):
                    parameter.shown = None
                    parameter.grad = None
            self._forget_states()

    def _show(self, *, values: bool, gradients: bool, states: bool) -> None:
        mine = self._told(gradients=gradients, states=states)
        every = messages.gather(mine)
        for place, (parameter, rank) in enumerate(self._owners):
            told = every[rank][place]
            own: torch.Tensor = parameter
            value = self._from(rank, parameter, told["like"]) if values else None
            if isinstance(own, AbsentWeight):
                own.shown = value
            if told["has_gradient"]:
                gradient = self._from(rank, parameter.grad, told["like"])
                if isinstance(own, AbsentWeight):
                    own.grad = gradient
            for number, state in told["states"].items():
                self._show_state(number, own, rank, state)
        for optimizer in self.optimizers() if states else ():
            if optimizer is not None:
                _put_in_order(optimizer)

    def _show_state(self, number: int, own: Any, rank: int, state: StateDict) -> None:
        """Broadcast the optimizer state of a weight from its rank to every rank."""
        optimizer = self.optimizers()[number]
        mine = optimizer.state[own] if optimizer is not None and rank == self.world.rank else {}
        kept = {
            key: self._from(rank, mine.get(key), like) if isinstance(like, torch.Tensor) else like
            for key, like in state.items()
        }
        if optimizer is not None and isinstance(own, AbsentWeight):
            optimizer.state[own] = kept

    def _told(self, *, gradients: bool, states: bool) -> list[Any]:
        """Return for each weight of this rank the shapes of its tensors, and the numbers in its optimizer states."""
        entries: list[Any] = []
        for parameter, rank in self._owners:
            if rank != self.world.rank:
                entries.append(None)
                continue
            kept = {}
            for number, optimizer in enumerate(self.optimizers() if states else ()):
                if optimizer is not None and parameter in optimizer.state:
                    kept[number] = {key: _like(value) for key, value in optimizer.state[parameter].items()}
            has_gradient = gradients and parameter.grad is not None
            entries.append({"like": _like(parameter), "has_gradient": has_gradient, "states": kept})
        return entries

    def _from(self, rank: int, tensor: Any, like: torch.Tensor) -> torch.Tensor:
        mine = rank == self.world.rank
        value: torch.Tensor = (
            tensor.detach().to(self.world.device).contiguous() if mine
            else torch.empty(like.shape, dtype=like.dtype, device=self.world.device)
        )  # fmt: skip
        dist.broadcast(value, rank)
        return value

    def install(self, run: object) -> None:
        """Make saved states whole, and keep only this stage's part of loaded states."""
        super().install(run)

        def within(module: nn.Module) -> AbstractContextManager[None]:
            return self.shown(gradients=False, states=False) if self.has_part_of(module) else nullcontext()

        self._hook(nn.Module, "state_dict", within)
        self._hook(torch.optim.Optimizer, "state_dict", lambda _: self.shown(values=False, gradients=False))
        load = torch.optim.Optimizer.load_state_dict

        def load_state_dict(optimizer: torch.optim.Optimizer, state_dict: dict[str, object]) -> None:
            load(optimizer, state_dict)
            self._forget_states()

        why = "A stage keeps the part of a state that belongs to its weights."
        patches.replace(torch.optim.Optimizer, "load_state_dict", load_state_dict, why=why)

    def _hook(self, owner: object, name: str, within: Callable[[Any], AbstractContextManager[None]]) -> None:
        original = getattr(owner, name)

        def get(instance: object, *args: object, **kwargs: object) -> Any:
            with within(instance):
                return original(instance, *args, **kwargs)

        patches.replace(owner, name, get, why="A state that is saved has the weights of all stages.")


def _buffers(root: nn.Module) -> dict[str, tuple[int, int]]:
    return {
        f"{path}.{name}" if path else name: (id(buffer), internals.version(buffer))
        for path, module in root.named_modules()
        for name, buffer in internals.buffers(module).items()
        if buffer is not None and name not in internals.unsaved_buffers(module)
    }


def _refuse_changed(root: nn.Module, before: dict[str, tuple[int, int]]) -> None:
    """Refuse a model whose forward pass changes a buffer: only one rank's copy would change."""
    for name, now in _buffers(root).items():
        if before.get(name) != now:
            raise StrategyError(
                f"{type(root).__name__} changes its buffer {name} in its forward pass, but only one "
                "rank's copy changes",
                hint="use a model that changes no buffers; --scale tensor",
            )


def _put_in_order(optimizer: torch.optim.Optimizer) -> None:
    kept = dict(optimizer.state)
    optimizer.state.clear()
    for parameter in weights_of(optimizer):
        if parameter in kept:
            optimizer.state[parameter] = kept[parameter]


def _like(value: object) -> Any:
    """Return the shape of a tensor without its numbers, and anything else as it is."""
    return torch.empty_like(value.detach(), device="meta") if isinstance(value, torch.Tensor) else value
