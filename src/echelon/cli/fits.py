"""`echelon plan --parameters`: which strategies fit a model into memory, and the command for them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from echelon.cli.options import Option, Scanned
from echelon.cli.readers import one_of
from echelon.cli.resources import RESOURCES
from echelon.errors import UsageError
from echelon.plan import memory
from echelon.plan.memory import DTYPES, OPTIMIZERS, DeviceGroup, Fit, TrainedModel
from echelon.spec import Booking
from echelon.units import aligned, counted, size, size_bytes, slurm_time

if TYPE_CHECKING:
    from echelon.plan.candidates import PartitionCandidate

OPTIONS: tuple[Option, ...] = (
    Option(names=("--parameters",), value="N", help="tell whether a model with so many weights fits: 124M, 7B, 7e9"),
    Option(names=("--dtype",), value="TYPE", choices=tuple(DTYPES),
           help="the data type of its weights: fp32 (default), bf16, fp16"),
    Option(names=("--optimizer",), value="NAME", choices=tuple(OPTIMIZERS),
           help="adamw (default), adam, lion, momentum, sgd"),
    Option(names=("--device-memory",), value="SIZE",
           help="memory of one device, such as 80G, if the machine's is not known"),
)  # fmt: skip
_COUNTS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_MOST = 10**15
_ROWS = ("weights", "gradients", "states", "passing", "left")


def read_model(values: Mapping[str, str]) -> TrainedModel | None:
    """Return the model that the options describe, None without one; raise UsageError for invalid values."""
    if "parameters" not in values:
        for key in ("dtype", "optimizer", "device_memory"):
            if key in values:
                raise UsageError(
                    f"--{key.replace('_', '-')} needs --parameters, the size of the model", hint="--parameters 7B"
                )
        return None
    return TrainedModel(
        num_parameters=_count(values["parameters"]),
        dtype=one_of(values.get("dtype", "fp32"), "--dtype", tuple(DTYPES)),
        optimizer=one_of(values.get("optimizer", "adamw"), "--optimizer", tuple(OPTIMIZERS)),
    )


def _count(text: str) -> int:
    match = re.fullmatch(
        r"([0-9]{1,15}(?:\.[0-9]{1,15})?(?:e\+?[0-9]{1,2})?)\s*([KMBGT]?)", text.strip(), re.IGNORECASE
    )
    number = round(float(match[1]) * _COUNTS[match[2].upper()]) if match else 0
    if not 1 <= number <= _MOST:
        raise UsageError(
            f"--parameters {text or repr('')}: not a number of weights; examples: 124M, 7B, 7e9 or 7000000000",
            hint="--parameters 7B",
        )
    return number


def devices_of(booking: Booking, chosen: PartitionCandidate, values: Mapping[str, str]) -> DeviceGroup:
    """Return the devices that the job would have; raise UsageError if a device's memory is not known."""
    asked_bytes = size_bytes(values["device_memory"], option="--device-memory") if "device_memory" in values else 0
    device_bytes = asked_bytes or chosen.kind.device_memory_bytes or 0
    if not device_bytes:
        raise UsageError(
            f"the memory of a device ({chosen.kind.chip or booking.partition}) of {booking.title} is not published, "
            "so echelon cannot tell what fits",
            hint="--device-memory 80G   if the device has 80 GiB",
        )
    return DeviceGroup(
        num_ranks=booking.world_size,
        ranks_per_node=booking.ranks_per_node,
        device_bytes=device_bytes,
        node_bytes=booking.memory_bytes_per_node or (chosen.kind.memory_bytes_per_device or 0) * booking.ranks_per_node,
    )


def answer(
    booking: Booking,
    chosen: PartitionCandidate,
    values: Mapping[str, str],
    is_taken: Callable[[Mapping[str, str]], bool],
) -> StrategiesAnswer | None:
    """Return the answer about a model, None without a model; `is_taken` tells whether the machine accepts options."""
    model = read_model(values)
    if model is None:
        return None
    devices = devices_of(booking, chosen, values)
    node_devices = chosen.kind.num_devices or 0
    return StrategiesAnswer(model, devices, values, is_taken, node_devices=node_devices, minutes=booking.minutes)


class StrategiesAnswer:
    """The strategies that fit, and the commands to type."""

    def __init__(
        self,
        model: TrainedModel,
        devices: DeviceGroup,
        values: Mapping[str, str],
        is_taken: Callable[[Mapping[str, str]], bool],
        *,
        node_devices: int,
        minutes: int,
    ) -> None:
        self._model = model
        self._devices = devices
        self._values = values
        self._is_taken = is_taken
        self._minutes = minutes
        self._fits = memory.fits(model, devices)
        least = memory.least_ranks(model, devices.device_bytes)
        self._least = -(-least // node_devices) * node_devices if least > node_devices > 0 else least
        """In ranks; whole nodes when one node is not enough."""

    def as_data(self) -> dict[str, Any]:
        first = self._first
        return {
            **asdict(self._model),
            **asdict(self._devices),
            "strategies": [asdict(fit) for fit in self._fits],
            "first": first.strategy if first else None,
            "take": self._take(),
            "least_ranks": self._least,
        }

    def print(self) -> None:
        model, devices = self._model, self._devices
        ranks = counted(devices.num_ranks, "rank")
        print(
            f"\n{_short(model.num_parameters)} parameters in {model.dtype} with {model.optimizer}, on {ranks} with "
            f"{size(devices.device_bytes)} each:"
        )
        print("\n".join(aligned([("strategy", *_ROWS, "")] + [_row(fit) for fit in self._fits])))
        if any(fit.host_bytes for fit in self._fits):
            print("(host): weights, gradients and states are in the memory of the node")
        for line in self._take():
            print(line)

    @property
    def _first(self) -> Fit | None:
        return next((fit for fit in self._fits if fit.fits), None)

    def _take(self) -> list[str]:
        """Return the commands for the first strategy that fits, and for the first that an unchanged script can use."""
        first = self._first
        if first is None:
            return [self._on_more()]
        scaled = next((fit for fit in self._fits if fit.fits and fit.scale), None)
        lines = []
        if not first.scale:
            lines.append(f"{first.strategy}: run.parallelize(model, echelon.{first.code})")
        if scaled is not None:
            asked = {key: value for key, value in self._values.items() if key not in _OF_MODEL}
            words = typed((*RESOURCES, *OPTIONS), {**asked, "time": slurm_time(self._minutes)})
            lines.append(f"{scaled.strategy}: echelon submit {words} --scale {scaled.scale} train.py")
        return lines

    def _on_more(self) -> str:
        """Return the command with the least number of ranks that fits, if the machine accepts it."""
        told = f"no strategy fits here; with {self._least} ranks one would fit"
        values = with_ranks(self._least, self._values, self._is_taken)
        if values is None:
            return f"{told}, but no job here can have so many"
        return f"{told}: echelon plan {typed((*RESOURCES, *OPTIONS), values)}"


def with_ranks(
    num_ranks: int, values: Mapping[str, str], is_taken: Callable[[Mapping[str, str]], bool]
) -> dict[str, str] | None:
    """Return the options for so many ranks that the machine accepts, in any partition if need be; None without any."""
    for leaves in (("nodes", "gpus_per_node"), ("nodes", "gpus_per_node", "partition")):
        asked = {name: value for name, value in values.items() if name not in leaves} | {"gpus": str(num_ranks)}
        if is_taken(asked):
            return asked
    return None


def typed(options: Sequence[Option], values: Mapping[str, str], *words: str) -> str:
    """Return options with values, in the order of the options, and further words, as a person types them."""
    scanned = Scanned(values={key: [value] for key, value in values.items()}, rest=(), is_program=False)
    return shlex.join([*scanned.words(options), *words])


_OF_MODEL = tuple(option.key for option in OPTIONS)


def _row(fit: Fit) -> tuple[str, ...]:
    numbers = (fit.weights_bytes, fit.gradients_bytes, fit.states_bytes, fit.passing_bytes)
    cells = [size(number) if number else "–" for number in numbers]
    left = size(fit.left_bytes) if fit.left_bytes >= 0 else f"−{size(-fit.left_bytes)}"
    where = " (host)" if fit.host_bytes else ""
    return (fit.strategy, *cells, left, f"fits{where}" if fit.fits else f"does not fit{where}")


def _short(number: int) -> str:
    for letter in ("T", "B", "M", "K"):
        if number >= _COUNTS[letter]:
            return f"{number / _COUNTS[letter]:.3g}{letter}"
    return str(number)
