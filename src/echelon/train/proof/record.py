"""Write down what a training does, step by step, so that two of them can be compared.

Every rank takes part, since a sharded tensor is made whole by all of them together; rank 0 writes.
"""

import json
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn

from .. import modules
from . import flat as flats

_save = torch.save  # before it is hooked: this is not the script's, and one rank alone writes
_open = open
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "OptimizedModule", "FullyShardedDataParallel")
DIGESTS = 1 << 40  # there are so many, with room for sums of them
_WITHIN_NAMES = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class Record:
    """Losses, gradient norms and learning rates of the first steps, and all tensors at some of them."""

    def __init__(self, folder: str, *, num_steps: int, is_main: bool) -> None:
        self._folder = folder
        self._num_steps = num_steps
        self._is_main = is_main
        self._step = 0
        self._is_in_step = False
        self._trained: List[Trained] = []
        self.about: Dict[str, Any] = {}
        """What this run had, for whoever must know whether that is what was asked for."""
        self.loss: Optional[float] = None
        """Of the last backward."""
        self.num_samples = 0
        self.digest = 0
        """Of the samples since the last step, in whatever order; both are 0 where they are not seen."""

    def before_step(self, optimizer: torch.optim.Optimizer, parameters: List[nn.Parameter]) -> None:
        """Note what an optimizer is about to use."""
        if self._is_in_step:
            return  # an optimizer within an optimizer
        self._is_in_step = True
        self._step += 1
        if [id(one) for one in parameters] != [id(one.parameter) for one in self._trained]:
            self._trained = trained(parameters)
        norms = dict(pair for one in self._trained for pair in one.norms())
        row = {
            "step": self._step,
            "learning_rate": float(optimizer.param_groups[0]["lr"]),
            "norms": norms,
            **self._of_all_ranks(sum(norm**2 for norm in norms.values()) ** 0.5),
        }
        if self._is_main:
            with _open(os.path.join(self._folder, "steps.jsonl"), "a") as file:
                file.write(json.dumps(row) + "\n")
        if self._step == 1:
            self._keep("start", (("initial %s" % name, whole) for one in self._trained for name, whole in one.values()))
        if self._keeps_this:
            found = (pair for one in self._trained for pair in one.gradients())
            self._keep("gradients", (("gradient of %s" % name, whole) for name, whole in found))

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note what the optimizer made of it; after the last step that was asked for the script is ended."""
        if not self._is_in_step:
            return
        self._is_in_step = False
        if self._keeps_this:
            self._keep("states", (pair for one in self._trained for pair in one.states(optimizer)))
            found = (pair for one in self._trained for pair in one.values())
            self._keep("parameters", (("parameter %s" % name, whole) for name, whole in found))
            self._forget_older()
        if self._is_main:
            self._write_about()
        if self._step >= self._num_steps:
            self._end()

    @property
    def _keeps_this(self) -> bool:
        """Of the first two steps, the last, and the latest power of two: a script may end early."""
        return self._step == self._num_steps or self._step & (self._step - 1) == 0

    def _forget_older(self) -> None:
        older = self._step // 2
        if self._is_main and older > 2 and self._step & (self._step - 1) == 0:
            for kind in ("gradients", "states", "parameters"):
                os.remove(os.path.join(self._folder, "step-%d-%s.pt" % (older, kind)))

    def _of_all_ranks(self, norm: float) -> Dict[str, Any]:
        """Return the step's loss and samples over all ranks, and each rank's own."""
        mine = torch.tensor([float("nan") if self.loss is None else self.loss, norm], dtype=torch.float64)
        counts = torch.tensor([self.num_samples, self.digest], dtype=torch.int64)
        self.num_samples = self.digest = 0
        rows = _gathered(torch.cat([mine.view(torch.int64), counts]), self._trained)
        floats = [row[:2].view(torch.float64).tolist() for row in rows]
        samples = [row[2:].tolist() for row in rows]
        losses = [loss for loss, _ in floats]
        return {
            "loss": None if self.loss is None else sum(losses) / len(losses),
            "gradient_norm": norm,
            "ranks": [
                {"gradient_norm": norm, "samples": number, "digest": digest}
                for (_, norm), (number, digest) in zip(floats, samples)  # noqa: B905
            ],
        }

    def _keep(self, kind: str, tensors: Iterator[Tuple[str, torch.Tensor]]) -> None:
        kept = {}
        for label, tensor in tensors:  # each is made whole by all ranks together
            if self._is_main:
                kept[label] = tensor.cpu()
        if self._is_main:
            _save(kept, os.path.join(self._folder, "step-%d-%s.pt" % (self._step, kind)))

    def _write_about(self) -> None:
        self.about.update(
            world_size=dist.get_world_size() if _is_joined() else 1,
            is_joined=_is_joined(),
            num_parameters=sum(len(one.names) for one in self._trained),
            num_sharded=sum(len(one.names) for one in self._trained if one.is_sharded),
        )
        with _open(os.path.join(self._folder, "about.json"), "w") as file:
            json.dump(self.about, file)

    def _end(self) -> None:
        try:
            if _is_joined():
                dist.barrier()  # who leaves first takes the others' store away
        finally:
            os._exit(0)  # all that is compared is written, whatever the others do


def asked(environ: Mapping[str, str], *, is_main: bool) -> Optional[Record]:
    """Return the record that the environment asks for; None where it does not."""
    folder = environ.get("ECHELON_RECORD", "")
    if not folder:
        return None
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from ..first_step import FirstStep

    FirstStep(is_main=False, say=lambda _: None).keep_dropout_off()  # ranks cannot draw what one device draws
    record = Record(folder, num_steps=int(environ["ECHELON_RECORD_STEPS"]), is_main=is_main)
    register_optimizer_step_post_hook(lambda optimizer, *_: record.after_step(optimizer))
    return record


class Trained(NamedTuple):
    """A parameter of an optimizer: one of the script's, or several that were made one."""

    parameter: nn.Parameter
    names: List[str]
    flat: Optional[flats.Flat]

    @property
    def is_sharded(self) -> bool:
        return hasattr(self.parameter, "full_tensor") or (self.flat is not None and self.flat.group is not None)

    def values(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """Yield each name with its whole parameter; as of all that follows, all ranks must ask."""
        return self._named(self.parameter)

    def gradients(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """Yield each name with its whole gradient, where there is one."""
        return self._named(self.parameter.grad)

    def norms(self) -> Iterator[Tuple[str, float]]:
        """Yield each name with the norm of its gradient."""
        gradient = self.parameter.grad
        if gradient is not None and hasattr(gradient, "full_tensor"):
            yield self.names[0], float(whole(_norm(gradient.detach())))  # one number travels
            return
        for name, one in self.gradients():
            yield name, float(_norm(one))

    def states(self, optimizer: torch.optim.Optimizer) -> Iterator[Tuple[str, torch.Tensor]]:
        """Yield what an optimizer keeps of it: a label, and the whole."""
        state = optimizer.state.get(self.parameter, {})
        if self.flat is not None:
            for key, tensors in self.flat.states(state, self.parameter).items():
                for name, one in zip(self.names, tensors):  # noqa: B905
                    yield "%s of %s" % (key, name), one
            return
        for key, value in state.items():
            is_list = isinstance(value, (list, tuple))
            for place, one in enumerate(value if is_list else [value]):
                label = "%s%s of %s" % (key, "[%d]" % place if is_list else "", self.names[0])
                if isinstance(one, torch.Tensor):
                    yield label, whole(one)
                elif isinstance(one, (int, float)):
                    yield label, torch.tensor(float(one))

    def _named(self, tensor: Optional[torch.Tensor]) -> Iterator[Tuple[str, torch.Tensor]]:
        if self.flat is not None:
            yield from zip(self.names, self.flat.whole(tensor, self.parameter))  # noqa: B905
        elif tensor is not None:
            yield self.names[0], whole(tensor)


def trained(parameters: List[nn.Parameter]) -> List[Trained]:
    """Return an optimizer's parameters under the names that a person knows."""
    flat = flats.found(iter(modules.living()))
    result = []
    for name, parameter in zip(names(parameters), parameters):  # noqa: B905
        own = flat.get(id(parameter))
        known = [name]
        if own is not None and name.endswith("_flat_param"):
            known = [name[: -len("_flat_param")] + inner for inner in own.names]
        result.append(Trained(parameter, known, own))
    return result


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without its shards: of a DTensor all ranks must ask."""
    tensor = tensor.detach()
    gather: Optional[Callable[[], torch.Tensor]] = getattr(tensor, "full_tensor", None)
    if gather is not None:
        tensor = gather()
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(gradient, dtype=None if gradient.is_complex() else torch.float64)
    return norm


def _is_joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def _gathered(row: torch.Tensor, parameters: List["Trained"]) -> List[torch.Tensor]:
    """Return all ranks' rows."""
    if not _is_joined():
        return [row]
    row = row.to(parameters[0].parameter.device)
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row)
    return [one.cpu() for one in rows]


def names(parameters: List[nn.Parameter]) -> List[str]:
    """Return what a person calls each parameter, such as Net.fc1.weight, without the names of wrappers."""
    every = modules.living()
    inner = {id(child) for module in every for child in module._modules.values()}
    found: Dict[int, Tuple[str, nn.Module]] = {}
    for module in every:
        if id(module) in inner or isinstance(module, nn.ParameterList):
            continue
        root = _unwrapped(module)
        for name, parameter in root.named_parameters():
            if "parameters_of_optimizers" in name:  # our own wrapper
                continue
            for word in _WITHIN_NAMES:
                name = name.replace(word, "")
            if _depth(name) > _depth(found.get(id(parameter), ("", root))[0]):
                found[id(parameter)] = (name, root)
    return _with_classes(parameters, found)


def _depth(name: str) -> Tuple[int, int, str]:
    return name.count("."), len(name), name


def _with_classes(parameters: List[nn.Parameter], found: Dict[int, Tuple[str, nn.Module]]) -> List[str]:
    """Put the class of the outermost module before each name; a second model of that class is Net#2."""
    classes: Dict[int, str] = {}
    counts: Dict[str, int] = {}
    result = []
    for place, parameter in enumerate(parameters):
        if id(parameter) not in found:
            result.append("parameter %d of shape %s" % (place, tuple(parameter.shape)))
            continue
        name, root = found[id(parameter)]
        if id(root) not in classes:
            label = _class(root)
            counts[label] = counts.get(label, 0) + 1
            classes[id(root)] = label if counts[label] == 1 else "%s#%d" % (label, counts[label])
        result.append("%s.%s" % (classes[id(root)], name))
    return result


def _unwrapped(module: nn.Module) -> nn.Module:
    while type(module).__name__ in _WRAPPERS and len(module._modules) == 1:
        module = next(one for one in module._modules.values() if one is not None)
    return module


def _class(module: nn.Module) -> str:
    """Return the class as the script has it: fully_shard makes an FSDPNet of a Net."""
    bases = type(module).__bases__
    if len(bases) == 2 and bases[0].__module__.startswith("torch.distributed"):
        return bases[1].__name__
    return type(module).__name__


def in_other_order(batch: Any) -> Any:
    """Return the same samples in another order: sums over them differ by rounding alone."""
    if isinstance(batch, torch.Tensor):
        return batch.flip(0) if batch.dim() else batch
    if isinstance(batch, dict):
        return type(batch)((key, in_other_order(value)) for key, value in batch.items())
    if isinstance(batch, (list, tuple)) and any(isinstance(entry, torch.Tensor) for entry in batch):
        return type(batch)(in_other_order(value) for value in batch)
    return batch[::-1] if isinstance(batch, list) else batch
