"""`echelon plan --fit train.py`: which strategy fits a script on the planned devices, from the trace of the script."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from echelon.cli.fits import OPTIONS as OF_MODEL
from echelon.cli.fits import devices_of, typed, with_ranks
from echelon.cli.options import Option, Scanned
from echelon.cli.resources import RESOURCES
from echelon.cli.talk import say
from echelon.errors import EchelonError, UsageError
from echelon.estimate import choice
from echelon.estimate.choice import Choice
from echelon.estimate.devices import Device
from echelon.estimate.layout import Layout
from echelon.estimate.verdict import fewest
from echelon.plan.memory import DeviceGroup
from echelon.spec import Booking
from echelon.units import counted, size, slurm_time

if TYPE_CHECKING:
    from echelon.host import Host
    from echelon.launch.fit import TracedTraining
    from echelon.orders.trace import TraceOrder
    from echelon.plan.candidates import PartitionCandidate

OPTIONS: tuple[Option, ...] = (
    Option(names=("--fit",), help="trace the script that follows the options, and tell which strategy fits"),
    Option(names=("--assume",), value="LINE=VALUE", help="with --fit: the value that a line reads from a tensor"),
)
_OF_FORMULA = ("parameters", "dtype", "optimizer")


def read_question(scanned: Scanned) -> TraceOrder | None:
    from echelon.cli.fit import question

    if "fit" not in scanned.values:
        if "assume" in scanned.values:
            raise UsageError("--assume needs --fit, which traces a script", hint="echelon plan --gpus 8 --fit train.py")
        return None
    for key in _OF_FORMULA:
        if key in scanned.values:
            raise UsageError(
                f"--{key} is for the formula, but --fit reads the model from the script", hint=f"remove --{key}"
            )
    if not scanned.rest:
        raise UsageError("--fit needs a script after the options", hint="echelon plan --gpus 8 --fit train.py")
    if not os.path.isfile(scanned.rest[0]):
        raise UsageError(f"--fit {scanned.rest[0]}: there is no such file", hint="echelon plan --gpus 8 --fit train.py")
    values = {"assume": scanned.values["assume"]} if "assume" in scanned.values else {}
    return question(Scanned(values=values, rest=scanned.rest, is_program=False), {})


def answer(
    question: TraceOrder,
    booking: Booking,
    chosen: PartitionCandidate,
    values: Mapping[str, str],
    host: Host,
    is_taken: Callable[[Mapping[str, str]], bool],
) -> PlanAnswer:
    """Trace the script, and choose its strategy; `is_taken` tells whether the machine accepts a job with options."""
    from echelon.launch import fit

    devices = devices_of(booking, chosen, values)
    say(f"tracing {question.target} up to its second step; nothing is computed or written")
    traced = fit.trace(question, host)
    return PlanAnswer(
        question, traced, booking, devices, chosen.kind.chip, values, refusal=partial(_refusal, host), is_taken=is_taken
    )


def _refusal(host: Host, words: Sequence[str]) -> str:
    """Say why `echelon submit` refuses words; empty if it accepts them. Nothing is written or submitted."""
    from echelon.cli import submit

    try:
        submit.refuse(list(words), host)
    except EchelonError as error:
        return error.message + (f" ({error.hint})" if error.hint else "")
    return ""


class PlanAnswer:
    """The strategy that fits the traced script on the booked devices, and the command to type.

    `refusal` tells why `echelon submit` would refuse words, empty if it accepts them; `is_taken` tells whether the
    machine accepts a job with these options.
    """

    def __init__(
        self,
        question: TraceOrder,
        traced: TracedTraining,
        booking: Booking,
        devices: DeviceGroup,
        chip: str,
        values: Mapping[str, str],
        *,
        refusal: Callable[[Sequence[str]], str],
        is_taken: Callable[[Mapping[str, str]], bool],
    ) -> None:
        self._question, self._traced, self._booking = question, traced, booking
        self._devices, self._values, self._refusal, self._is_taken = devices, values, refusal, is_taken
        self._device = Device(chip=chip, memory_bytes=devices.device_bytes)
        ranks, per_node = devices.num_ranks, devices.ranks_per_node
        self._choice = choice.choose(
            traced.log, self._device, ranks, ranks_per_node=per_node, node_bytes=devices.node_bytes
        )
        self._scaled: Choice | None = None
        """The same among those of --scale, where the simplest strategy is none of them."""
        if self._choice.chosen is not None and ranks > 1 and not choice.how(self._choice.chosen.layout):
            self._scaled = choice.choose_scaled(traced.log, self._device, choice.layouts(traced.log, ranks, per_node))

    def as_data(self) -> dict[str, Any]:
        from echelon.cli.fit_answer import summary

        simpler = self._choice.simpler
        return {
            "target": self._question.target,
            "parameters": self._traced.num_parameters,
            "rows": self._traced.log.rows,
            **asdict(self._devices),
            "chosen": None if self._choice.chosen is None else summary(self._choice.chosen),
            "simpler": None if simpler is None else summary(simpler),
            "refused": [summary(verdict) for verdict in self._choice.refused],
            "why": self._why,
            "notes": self._traced.log.notes,
            "take": self._take(),
        }

    def print(self) -> None:
        traced, devices = self._traced, self._devices
        rows = f", a batch of {counted(traced.log.rows, 'row')}" if traced.log.rows else ""
        print(
            f"\n{self._question.target}: {traced.num_parameters:,} parameters, {', '.join(traced.optimizers)}{rows}; "
            f"on {counted(devices.num_ranks, 'rank')} with {size(devices.device_bytes)} each:"
        )
        for note in traced.log.notes:
            print(f"note: {note}")
        print(self._why)
        for line in self._take():
            print(line)

    @property
    def _submitted(self) -> Layout | None:
        chosen = self._choice.chosen
        if chosen is None:
            return None
        is_plain = chosen.layout.num_ranks == 1 and not chosen.layout.checkpointing
        if is_plain or choice.how(chosen.layout):
            return chosen.layout
        return None if self._scaled is None or self._scaled.chosen is None else self._scaled.chosen.layout

    @property
    def _why(self) -> str:
        layout = self._submitted
        return self._choice.why + ("" if layout is None else self._traced.doubt_of(layout))

    def _take(self) -> list[str]:
        """Return the lines to type for the strategy that fits, and for the first that an unchanged script can use."""
        chosen = self._choice.chosen
        if chosen is None:
            return [self._on_more()]
        lines = []
        if not choice.how(chosen.layout) and chosen.layout != type(chosen.layout)():
            lines.append(f"{chosen.layout.name}: run.parallelize(model, echelon.{chosen.layout.code})")
        layout = self._submitted
        if layout is not None:
            lines.append(f"{layout.name}: {self._submit(layout)}")
        return lines

    def _submit(self, layout: Layout) -> str:
        """Return the command that submits the script scaled so, or why `echelon submit` or its run would refuse it."""
        how = choice.how(layout)
        values = {**self._values, "time": slurm_time(self._booking.minutes)}
        words = typed(RESOURCES, values, *(["--scale", how] if how else []), *self._script)
        if reason := self._refusal(shlex.split(words)):
            return f"echelon submit would refuse it: {reason}"
        return self._traced.refusal_of(layout) or f"echelon submit {words}"

    @property
    def _script(self) -> list[str]:
        return [self._question.target, *self._question.arguments]

    def _on_more(self) -> str:
        """Return the command with the fewest ranks on which FSDP fits, without checkpointing or with it."""
        log = self._traced.log
        for base in [Layout(), *([Layout(checkpointing=True)] if log.blocks else [])]:
            sharded = partial(_sharded, base)
            few = fewest(log, self._device, sharded, margin=self._choice.margin).surely
            values = with_ranks(few, self._values, self._is_taken) if few > self._devices.num_ranks else None
            if values is not None:
                rows = f" with a batch of at least {few} rows" if 0 < log.rows < few else ""
                more = typed((*RESOURCES, *OF_MODEL), values, "--fit", *self._script)
                return f"on {few} ranks {base.changed(shard=few).name} would fit{rows}: echelon plan {more}"
        return f"what to change first: echelon fit {shlex.join(self._script)}"


def _sharded(base: Layout, num_ranks: int) -> Layout:
    return base.changed(shard=num_ranks)
