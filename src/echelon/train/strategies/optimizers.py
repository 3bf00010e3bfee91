"""An optimizer over weights that are cut in several ways, and its states as one device would save them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from .. import optimizer_kinds
from ..function_types import Kwargs, ParamGroup, StateDict
from ..wire.gather import is_dtensor
from . import spreading, states
from .axes import Axes
from .strategy import StrategyError

OURS = ("echelon_group", "params")
Key = TypeVar("Key")
Value = TypeVar("Value")
Chooser = Callable[[str, nn.Parameter], dict[str, object]]


class Optimizing:
    def __init__(
        self,
        kind: type,
        parameters: Mapping[str, nn.Parameter],
        axes: Axes,
        *,
        groups: Chooser | None = None,
        settings: Kwargs,
    ) -> None:
        wanted = {
            name: groups(name, parameter) if groups is not None else {}
            for name, parameter in parameters.items()
            if parameter.requires_grad
        }
        every = _all_settings(list(wanted.values()), axes)
        is_fused = any({**settings, **one}.get("fused") for one in every)
        _check(kind, axes, is_fused=is_fused, unfused="fused=False")
        self._kind, self._axes = kind, axes
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        grouped = _grouped(parameters, wanted, every)
        self.optimizer = spreading.make_optimizer(kind, grouped, axes, settings)

    def state(self, order: Sequence[str], spool: str = "") -> StateDict:
        """Return states and groups as torch.optim saves them on one device; on the main rank alone.

        With `spool`, a file, the tensors lie in it and are mapped, so that memory does not hold all of them.
        """
        if self._axes.strategy.spreads_states_only:
            return self._state_of_zero()
        tensors, numbers = {}, {}
        for parameter, values in self.optimizer.state.items():
            name = self._names[id(parameter)]
            for key, value in values.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    tensors[f"{name}\n{key}"] = value
                else:
                    numbers[f"{name}\n{key}"] = value
        entries: StateDict = dict(states.gather(tensors, self._axes, (), spool))
        members, kept = self._members(), {}
        for stage in self._axes.of_all_stages((numbers, members, self._settings())):
            entries.update(stage[0])
            members.update(stage[1])
            kept.update(stage[2])
        return {} if self._axes.world.rank else _as_one_device(entries, members, kept, order)

    def rates(self) -> list[float]:
        """Return the learning rate of each group of one device; every rank must ask."""
        kept = self._merged(self._settings())
        return [float(kept[number]["lr"]) for number in sorted(kept)]

    def names(self, order: Sequence[str]) -> list[str]:
        """Return the names of the weights as one device numbers them; every rank must ask."""
        return _in_order(self._merged(self._members()), order)

    def _groups(self) -> list[ParamGroup]:
        groups: list[ParamGroup] = self.optimizer.param_groups
        return groups

    def _merged(self, mine: dict[Key, Value]) -> dict[Key, Value]:
        return {key: value for stage in self._axes.of_all_stages(mine) for key, value in stage.items()}

    def _members(self) -> dict[str, int]:
        return {self._names[id(one)]: group["echelon_group"] for group in self._groups() for one in group["params"]}

    def _settings(self) -> dict[int, ParamGroup]:
        return {
            group["echelon_group"]: {key: value for key, value in group.items() if key not in OURS}
            for group in self._groups()
        }

    def _state_of_zero(self) -> StateDict:
        axes = self._axes
        if axes.place("replicate"):
            return {}  # only the first replica returns the state
        self.optimizer.consolidate_state_dict(to=0)
        if axes.world.rank:
            return {}
        state = self.optimizer.state_dict()
        groups = [{key: value for key, value in one.items() if key != "echelon_group"} for one in state["param_groups"]]
        return {"state": state["state"], "param_groups": groups}

    def load(self, state: StateDict, order: Sequence[str]) -> None:
        """Load a state that one device or any strategy has saved; every rank must pass the whole state."""
        if self._axes.strategy.spreads_states_only:
            groups = [{**one, "echelon_group": number} for number, one in enumerate(state["param_groups"])]
            self.optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
            return
        is_fused = any(group.get("fused") for group in state["param_groups"])
        unfused = 'set this first: for group in state["param_groups"]: group["fused"] = False'
        _check(self._kind, self._axes, is_fused=is_fused, unfused=unfused)
        names = self._names_of(state, order)
        for group in self._groups():
            saved = state["param_groups"][group["echelon_group"]]
            group.update({key: value for key, value in saved.items() if key not in OURS})
            for parameter in group["params"]:
                values = state["state"].get(names[self._names[id(parameter)]], {})
                self.optimizer.state[parameter] = {key: _part(value, parameter) for key, value in values.items()}

    def _names_of(self, state: StateDict, order: Sequence[str]) -> dict[str, int]:
        names = self.names(order)
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        if len(numbers) != len(names):
            raise StrategyError(
                f"the optimizer's state has {len(numbers)} weights, but the model has {len(names)}",
                hint="load the state of an optimizer of the same model",
            )
        return dict(zip(names, numbers, strict=False))


def _check(kind: object, axes: Axes, *, is_fused: bool, unfused: str) -> None:
    """Refuse an optimizer that would treat a part of a weight, or of all weights, as the whole.

    `unfused` is the hint that turns a fused optimizer into another.
    """
    strategy = axes.strategy
    is_apart = strategy.is_fully_sharded or strategy.tensor > 1
    if optimizer_kinds.needs_all_weights(kind):
        is_apart = is_apart or strategy.spreads_states_only or strategy.num_data < axes.world.size
    why = optimizer_kinds.why_needs_whole(kind)
    if why is not None and is_apart:
        raise StrategyError(why, hint="torch.optim.AdamW")
    why = optimizer_kinds.why_bits_differ(kind, is_fused=is_fused)
    if why is not None and axes.num_shards and strategy.is_fully_sharded:
        repair = unfused if is_fused else "one of these"
        raise StrategyError(why, hint=f"{repair}; or replicate= in place of shard=, which keeps weights whole")


def check_is_stepped_once(optimizer: torch.optim.Optimizer) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise StrategyError(
            "LBFGS computes the loss several times a step, but step() computes it once",
            hint="use optimizer.step(closure); the closure calls zero_grad() and trained.backward(inputs, targets)",
        )


def _part(value: object, parameter: Any) -> object:
    """Return this rank's part of one state, with the placements of its weight."""
    if not isinstance(value, torch.Tensor) or not value.dim():
        return value.clone() if isinstance(value, torch.Tensor) else value
    if not is_dtensor(parameter):
        return value.to(parameter.device).clone()
    from torch.distributed.tensor import DTensor

    local = states.part_of(value, parameter).to(parameter.to_local().device).clone()
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _in_order(members: Mapping[str, int], order: Sequence[str]) -> list[str]:
    """Return weights in the order in which one device numbers them: group by group, in the model's order."""
    known = {name: place for place, name in enumerate(order)}
    return sorted(members, key=lambda name: (members[name], known.get(name, len(known))))


def _as_one_device(
    entries: StateDict, members: dict[str, int], settings: dict[int, ParamGroup], order: Sequence[str]
) -> StateDict:
    names = _in_order(members, order)
    numbers = {name: number for number, name in enumerate(names)}
    state: dict[int, ParamGroup] = {}
    for both, value in sorted(entries.items()):
        name, _, key = both.partition("\n")
        state.setdefault(numbers[name], {})[key] = value
    groups = [
        {**settings[number], "params": [numbers[name] for name in names if members[name] == number]}
        for number in sorted(settings)
    ]
    return {"state": dict(sorted(state.items())), "param_groups": groups}


def _grouped(
    parameters: Mapping[str, nn.Parameter], wanted: dict[str, ParamGroup], every: list[ParamGroup]
) -> list[ParamGroup]:
    """Return groups of weights with equal settings and the same mesh: PyTorch steps over a group at once."""
    groups: dict[tuple[int, str], ParamGroup] = {}
    for name, own in wanted.items():
        number = every.index(own)
        parameter: Any = parameters[name]
        key = (number, str(parameter.device_mesh) if is_dtensor(parameter) else "")
        groups.setdefault(key, {**own, "params": [], "echelon_group": number})["params"].append(parameters[name])
    return [groups[key] for key in sorted(groups)]


def _all_settings(mine: list[ParamGroup], axes: Axes) -> list[ParamGroup]:
    different: list[ParamGroup] = []
    for settings in [one for part in axes.of_all_stages(mine) for one in part]:
        if settings not in different:
            different.append(settings)
    return different
