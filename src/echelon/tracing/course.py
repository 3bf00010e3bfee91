"""The course of a training: where a step begins, what its weights are, and when it has been seen."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..pytorch import internals
from ..train import patches
from ..train.strategies import blocks
from . import ledger as ledgers
from . import pretended
from .ledger import Ledger
from .micro_batches import BackwardPasses
from .sharing import Sharing

_WHY = "The trace of a training has marks where its parts begin."
NUM_STEPS = 2


class StopTracing(BaseException):
    """The training has been seen: the script goes no further."""


class StepTracer:
    """Follows a script from the building of its model to the end of the second step of its optimizers."""

    def __init__(self, ledger: Ledger) -> None:
        self.modules: list[str] = []
        self.block_names: list[str] = []
        self.rows: int | None = None
        self.models: list[nn.Module] = []
        self.optimizers: list[str] = []
        """The classes of the optimizers that took a step."""
        self.num_steps = 0
        """The steps of the optimizer that took the most."""
        self._ledger = ledger
        self._micro_batches = BackwardPasses(ledger)
        self.sharing = Sharing()
        self._is_in_closure = self._has_autocast = False
        self._has_stepped = False
        """Whether an optimizer took a step within backward()."""
        self._has_begun = self._is_backward = False
        """Whether this step has called a model, and whether it has gone backward."""
        self._numbers: dict[int, int] = {}
        self._stack: list[int] = []
        self._blocks: dict[int, int] = {}
        self._steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._entered: set[int] = set()
        self._shapes: set[tuple[int, ...]] = set()
        self._weights: list[dict[str, Any]] | None = None

    def install(self) -> None:
        """Hook modules, backward() and optimizers."""
        self.sharing.install()
        hooks: Any = nn.modules.module
        patches.replace(nn.Module, "__call__", self._calling(nn.Module.__call__), why=_WHY)
        patches.hook(hooks.register_module_forward_pre_hook, self._enter, why=_WHY)
        patches.hook(hooks.register_module_forward_hook, self._leave, why=_WHY)
        patches.hook(register_optimizer_step_pre_hook, self._before_step, why=_WHY)
        patches.hook(register_optimizer_step_post_hook, self._after_step, why=_WHY)
        patches.replace(Optimizer, "__init__", self._micro_batches.noting(Optimizer.__init__), why=_WHY)
        for owner, name in ((torch.Tensor, "backward"), (torch.autograd, "backward"), (torch.autograd, "grad")):
            patches.replace(owner, name, self._going_backward(getattr(owner, name)), why=_WHY)

    def end(self) -> None:
        """End the trace, if a script ended by itself after a step."""
        if self._has_stepped:  # it failed amid the steps that backward() takes
            self.num_steps = 0
        if self._ledger.is_closed or not self.num_steps:
            return
        self._ledger.take_back("step")
        self._ledger.mark("end")
        self._ledger.close()

    def notes(self) -> list[str]:
        """Return a sentence if not all micro-batches of a step were traced."""
        return self._micro_batches.notes()

    @property
    def progress(self) -> str:
        if not self.models:
            return "no model has been called"
        step, micro_batch = self.num_steps + 1, self._micro_batches.number + 1
        return f"step {step}, micro-batch {micro_batch}; {len(self._ledger.storages)} tensors so far"

    def weights(self) -> list[dict[str, Any]]:
        """Return the trained and other weights of the models, each once, as they were when the last step ended.

        Lightning moves a model to the host's memory as soon as its training is interrupted.
        """
        return self._list_weights() if self._weights is None else self._weights

    def _list_weights(self) -> list[dict[str, Any]]:
        rows, seen = [], set()
        for model in self.models:
            for name, weight in model.named_parameters():
                number = self._ledger.number(weight)
                if number is None or number in seen:
                    continue
                seen.add(number)
                rows.append({
                    "name": name, "bytes": weight.numel() * weight.element_size(), "elements": weight.numel(),
                    "block": self._block_of(model, name), "tensor": number,
                    "is_trained": weight.requires_grad, "dtype": str(weight.dtype).rpartition(".")[2],
                    "length": int(weight.shape[0]) if weight.dim() else 0,
                })  # fmt: skip
        return rows

    def _block_of(self, model: nn.Module, name: str) -> int:
        """Return the number of the block that holds a weight, -1 if none does."""
        parts = name.split(".")
        for end in range(len(parts) - 1, 0, -1):
            number = self._blocks.get(id(model.get_submodule(".".join(parts[:end]))))
            if number is not None:
                return number
        return -1

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call of a module, which sees the batch also where it has names: model(input_ids=tokens)."""

        def call(module: nn.Module, *args: object, **kwargs: object) -> Any:
            if not self._stack and self._ledger.phase != ledgers.OPTIMIZER:
                self._begin_forward(module, (args, kwargs))
            return original(module, *args, **kwargs)

        return call

    @property
    def half(self) -> str:
        """Why the training computes in 16 bits: autocast or weights; empty: it does not."""
        if self._has_autocast:
            return "autocast"
        rows = self.weights()
        num_bytes = sum(row["bytes"] for row in rows if row["dtype"] in ("bfloat16", "float16"))
        return "weights" if 2 * num_bytes > sum(row["bytes"] for row in rows) else ""

    def _enter(self, module: nn.Module, args: object) -> None:
        ledger = self._ledger
        self.sharing.entered(module, _tensors(args))
        self._has_autocast = self._has_autocast or any(map(torch.is_autocast_enabled, ("cuda", "cpu")))
        self._stack.append(self._numbers.get(id(module), -1))
        ledger.module = self._stack[-1] if self._stack[-1] >= 0 else ledger.module
        block = self._blocks.get(id(module))
        if block is not None and ledger.phase == ledgers.FORWARD:
            ledger.mark("enter", block)

    def _leave(self, module: nn.Module, args: object, result: object) -> None:
        ledger = self._ledger
        if self._stack:
            self._stack.pop()
        ledger.module = self._stack[-1] if self._stack else -1
        block = self._blocks.get(id(module))
        if block is not None and ledger.phase == ledgers.FORWARD:
            ledger.mark("leave", block)
            _on_gradient(result, lambda: self._enter_backward(block))
            _on_gradient(args, lambda: self._leave_backward(block))

    def _enter_backward(self, block: int) -> None:
        """Mark that a block's backward begins: the one after it has ended, which the same tensor tells only later."""
        if block not in self._entered:
            for other in sorted(self._entered):
                self._leave_backward(other)
            self._entered.add(block)
            self._ledger.mark("enter backward", block)

    def _leave_backward(self, block: int) -> None:
        if block in self._entered:
            self._entered.discard(block)
            self._ledger.mark("leave backward", block)

    def _begin_forward(self, model: nn.Module, args: object) -> None:
        """Note a model when it is called from outside of every module."""
        ledger = self._ledger
        self._micro_batches.before_model()
        self._begin()
        if not any(model is known_model for known_model in self.models) and any(True for _ in model.parameters()):
            pretended.simplify_frameworks()
            self.models.append(model)
            for name, module in model.named_modules():
                if id(module) not in self._numbers:
                    self._numbers[id(module)] = len(self.modules)
                    self.modules.append(name)
            for name, block in blocks.find(model).items():
                self._blocks[id(block)] = len(self.block_names)
                self.block_names.append(name)
        for weight in model.parameters():
            ledger.set_category(weight, ledgers.PARAMETER)
            self._shapes.add(_sorted(weight.shape))
        for buffer in model.buffers():
            ledger.set_category(buffer, ledgers.BUFFER)
        self.sharing.called(model, _tensors(args))
        for tensor in _tensors(args):
            known = ledger.of(tensor)
            if known is not None and known.category not in (ledgers.PARAMETER, ledgers.BUFFER, ledgers.ACTIVATION):
                known.category = ledgers.INPUT
            if self.rows is None and tensor.dim():
                self.rows = int(internals.unwrapped(tensor).shape[0])

    def _begin(self) -> None:
        ledger = self._ledger
        self._has_begun = True
        if ledger.phase == ledgers.BUILDING:
            ledger.mark("step")
        if ledger.phase != ledgers.BACKWARD:
            ledger.phase = ledgers.FORWARD

    def _going_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        ledger, differentiate = self._ledger, torch.autograd.grad

        def backward(*args: object, **kwargs: object) -> Any:
            if ledger.phase == ledgers.BACKWARD:  # torch.Tensor.backward calls the other
                return original(*args, **kwargs)
            self._begin()
            if original is not differentiate:
                self.sharing.went_backward(args[0] if args else None)
            ledger.keep_activations()
            ledger.mark("backward")
            self._is_backward = True
            before, ledger.phase, ledger.module = ledger.phase, ledgers.BACKWARD, -1
            try:
                result = original(*args, **kwargs)
            finally:
                for block in sorted(self._entered):
                    self._leave_backward(block)
                ledger.phase = before
            self._after_backward(accumulates=original is not differentiate)
            return result

        return backward

    def _after_backward(self, *, accumulates: bool) -> None:
        """End the step whose optimizers took theirs within backward(); cut a long accumulation short."""
        if self._has_stepped:
            self._has_stepped = False
            self._ledger.mark("optimizer")
            self._next_step()
        elif accumulates and not self._is_in_closure:
            self._micro_batches.after_backward()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Begin a step; one with a closure begins when its loss has gone backward."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # the first is the optimizer itself
        if not callable(closure):
            self._begin_step(optimizer)
            return None

        def followed() -> Any:
            self._is_in_closure = True
            if self._ledger.phase == ledgers.OPTIMIZER:  # not the first call of this step
                self._ledger.phase = ledgers.FORWARD
            loss = closure()
            self._is_in_closure = False
            self._begin_step(optimizer)
            return loss

        return (*args[:1], followed, *args[2:]), {name: kwargs[name] for name in kwargs if name != "closure"}

    def _begin_step(self, optimizer: Any) -> None:
        ledger = self._ledger
        for group in optimizer.param_groups:
            for weight in group["params"]:
                ledger.set_category(weight, ledgers.PARAMETER)
                ledger.set_category(weight.grad, ledgers.GRADIENT)
                self._shapes.add(_sorted(weight.shape))
        self._forget_weight_shapes()
        if ledger.phase == ledgers.BACKWARD:
            self._has_stepped = True
        else:
            if not self._has_begun and self.num_steps:
                ledger.take_back("step")  # a second optimizer after the same backward()
            elif not self._is_backward:  # the script has computed the gradients by itself
                self._begin()
                ledger.mark("backward")
            ledger.mark("optimizer")
        ledger.phase = ledgers.OPTIMIZER

    def _after_step(self, optimizer: Any, *_: object) -> None:
        ledger = self._ledger
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    ledger.set_category(value, ledgers.STATE)
        if optimizer not in self._steps:
            self.optimizers.append(type(optimizer).__name__)
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        self.num_steps = max(self.num_steps, self._steps[optimizer])
        if self._has_stepped:
            ledger.phase = ledgers.BACKWARD
            return
        ledger.phase = ledgers.FORWARD
        self._next_step()

    def _next_step(self) -> None:
        self._micro_batches.forget()
        self._has_begun = self._is_backward = False
        if min(self._steps.values()) >= NUM_STEPS:
            self._ledger.mark("end")
            self._ledger.close()
            self._weights = self._list_weights()
            raise StopTracing
        self._ledger.mark("step")

    def _forget_weight_shapes(self) -> None:
        """What backward() made in the shape of a weight, such as its gradient in another type, has no rows."""
        for storage in self._ledger.storages:
            if storage.phase == ledgers.BACKWARD and _sorted(storage.shape) in self._shapes:
                storage.is_of_rows = False


def _sorted(shape: Any) -> tuple[int, ...]:
    return tuple(sorted(shape))


def _tensors(values: object) -> list[torch.Tensor]:
    return [value for value in internals.tree_iter(values) if isinstance(value, torch.Tensor)]


def _on_gradient(values: object, act: Callable[[], None]) -> None:
    """Call a function when backward() has reached one of these tensors."""

    def reached(_: object) -> None:
        act()

    for tensor in _tensors(values):
        if tensor.requires_grad:
            tensor.register_hook(reached)  # type: ignore[no-untyped-call]
