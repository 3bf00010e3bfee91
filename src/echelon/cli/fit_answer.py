"""What `echelon fit` answers: the memory of each strategy, what fills it, what to change first, the largest batch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echelon.cli.fit_devices import Target
from echelon.cli.talk import print_table
from echelon.errors import UsageError
from echelon.estimate import advice, choice, verdict
from echelon.estimate.layout import Layout
from echelon.estimate.verdict import CLOSE, FITS, NAMES, Fewest, FitVerdict, LargestBatch
from echelon.launch.fit import TracedTraining
from echelon.orders.trace import TraceOrder
from echelon.units import aligned, counted, duration, size

MOST_MODULES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """One device: all strategies on it."""

    target: Target
    verdicts: tuple[FitVerdict, ...]
    """The first is that of the script as it is, on one device."""

    @property
    def as_it_is(self) -> FitVerdict:
        return self.verdicts[0]


class FitAnswer:
    """The judgement of a traced training on devices."""

    def __init__(
        self, question: TraceOrder, traced: TracedTraining, targets: Sequence[Target], *, num_ranks: int, rows: int
    ) -> None:
        self._question = question
        self._traced = traced
        self._log = traced.log
        self._rows = rows
        self._num_ranks = num_ranks
        if rows and not traced.log.rows:
            raise UsageError(
                f"--rows {rows}: the trace does not show which dim of the batch its rows are",
                hint="a model that is called with the batch, rows in the first dim",
            )
        have = rows or traced.log.rows
        if have and num_ranks > have:
            raise UsageError(
                f"--gpus {num_ranks}: the batch has {counted(have, 'row')}, and each device needs one",
                hint=f"--rows {num_ranks}   or --gpus {have}",
            )
        self._judged = [self._judge(target, is_only=len(targets) == 1) for target in targets]

    @property
    def verdicts(self) -> list[FitVerdict]:
        return [verdict for judged in self._judged for verdict in judged.verdicts]

    @property
    def exit_code(self) -> int:
        """0 if the training fits on each device as it is, or may."""
        return int(any(judged.as_it_is.answer not in (FITS, CLOSE) for judged in self._judged))

    def as_data(self) -> dict[str, Any]:
        traced, log = self._traced, self._log
        return {
            "target": self._question.target,
            "parameters": traced.num_parameters,
            "dtypes": traced.dtypes,
            "optimizers": traced.optimizers,
            "rows": self._rows or log.rows,
            "steps": traced.num_steps,
            "seconds": round(traced.seconds, 2),
            "flops": {"forward": log.forward_flops, "backward": log.backward_flops},
            "notes": log.notes,
            "refused": traced.refusal,
            "devices": [self._device_data(judged) for judged in self._judged],
        }

    def print(self) -> None:
        traced, log = self._traced, self._log
        words = [f"{self._question.target}: {traced.num_parameters:,} parameters ({', '.join(traced.dtypes)})"]
        words += [
            ", ".join(traced.optimizers),
            f"a batch of {counted(self._rows or log.rows, 'row')}" if log.rows else "",
        ]
        print_table(f"{', '.join(filter(None, words))}; traced in {duration(traced.seconds)}\n")
        for note in self._notes():
            print_table(f"note: {note}")
        if len(self._judged) > 1:
            print_table(self._table_of_devices())
            print_table("one device in detail: --device NAME; all strategies on a machine: --machine NAME")
            return
        for judged in self._judged:
            target, first = judged.target, judged.as_it_is
            print_table(f"on {target.title}, {size(target.device.memory_bytes)}:\n")
            print_table("\n".join(aligned([_HEAD, *(self._row(one) for one in judged.verdicts)])))
            print_table(self._fills(first))
            changes = [f"- {change.text}" for change in advice.advice(self._log, first)]
            print_table("\n".join(["what saves most:", *changes, ""]) if changes else "")
            print_table(self._ways(judged))

    def _judge(self, target: Target, *, is_only: bool) -> _Judged:
        log, rows = self._log, self._rows
        layouts = choice.of_one_device(log, rows=rows) if is_only else [Layout(rows=rows)]
        if is_only:
            layouts += choice.of_several(log, self._ranks(target), target.per_node, rows=rows)
        verdicts = tuple(verdict.judge(log, layout, target.device) for layout in layouts)
        return _Judged(target=target, verdicts=verdicts)

    def _ranks(self, target: Target) -> int:
        return self._num_ranks or target.per_node

    def _notes(self) -> list[str]:
        traced = self._traced
        notes = list(self._log.notes)
        if traced.num_steps == 1:
            notes.append(
                "the script takes one step; a second one, with the optimizer's states, is counted like the first"
            )
        if not traced.uses_device and self._question.device == "gpu":
            notes.append("the script moves nothing to a device; all that it trains is counted as if it did")
        return notes

    def _row(self, judged: FitVerdict) -> tuple[str, ...]:
        row = _row(judged, self._log.rows)
        return (*row[:-1], "refused") if self._traced.refusal_of(judged.layout) else row

    def _fills(self, first: FitVerdict) -> str:
        """Say what fills the memory at the peak of the script as it is."""
        peak = first.memory.peak
        where = f"{peak.phase} of {peak.block}" if peak.block else peak.phase
        parts = ", ".join(
            f"{NAMES[name]} {size(num)} ({num / max(peak.num_bytes, 1):.0%})"
            for name, num in peak.parts.items()
            if num >= peak.num_bytes / 100
        )
        lines = [f"\nthe peak on one device is in {where}: {parts}"]
        modules = _of_kinds(peak.activations)
        if peak.parts.get("activation", 0) >= peak.num_bytes / 10:
            names = ", ".join(f"{name or 'the model itself'} {size(num)}" for name, num in modules)
            lines.append(f"the modules that keep most for backward: {names}")
        outside = ", ".join(
            f"{_OUTSIDE[part.kind]} {size(part.low_bytes)} to {size(part.high_bytes)}"
            for part in first.overheads
            if part.high_bytes
        )
        lines.append(f"besides tensors: {outside}")
        lines.append(
            f"the allocator reserves {size(first.memory.reserved_bytes)} for {size(first.memory.allocated_bytes)}"
        )
        return "\n".join(lines) + "\n"

    def _ways(self, judged: _Judged) -> str:
        """Return the largest batch, the fewest devices, and the choice for the asked number of devices."""
        lines = []
        batch = self._largest(judged)
        if batch is not None:
            lines.append(f"the largest batch on one device: {_numbers(batch.surely, batch.perhaps, 'row')}")
        few = self._fewest(judged)
        lines.append(f"the fewest devices with FSDP: {_numbers(few.surely, few.perhaps, 'device', is_least=True)}")
        chosen = self._choice(judged)
        if chosen is not None:
            doubt = "" if chosen.chosen is None else self._traced.doubt_of(chosen.chosen.layout)
            lines.append(f"on {counted(self._ranks(judged.target), 'device')}: {chosen.why}{doubt}")
            if chosen.chosen is not None:
                layout = chosen.chosen.layout
                lines.append(f"  {self._traced.refusal_of(layout) or command(layout)}")
        return "\n".join(lines)

    def _largest(self, judged: _Judged) -> LargestBatch | None:
        return None if not self._log.rows else verdict.largest_batch(self._log, Layout(), judged.target.device)

    def _fewest(self, judged: _Judged) -> Fewest:
        rows = self._rows
        return verdict.fewest(self._log, judged.target.device, lambda count: Layout(shard=count, rows=rows))

    def _choice(self, judged: _Judged) -> choice.Choice | None:
        target, num_ranks = judged.target, self._ranks(judged.target)
        rows = self._rows or self._log.rows
        if rows and rows < num_ranks:
            return None
        return choice.choose(
            self._log,
            target.device,
            num_ranks,
            ranks_per_node=target.per_node,
            node_bytes=target.node_bytes,
            rows=self._rows,
        )

    def _table_of_devices(self) -> str:
        rows = [("device", "memory", "needed", "verdict")]
        for judged in self._judged:
            first = judged.as_it_is
            rows.append((judged.target.title, size(judged.target.device.memory_bytes), _span(first), first.answer))
        return "\n".join(aligned(rows))

    def _device_data(self, judged: _Judged) -> dict[str, Any]:
        batch, few, chosen = self._largest(judged), self._fewest(judged), self._choice(judged)
        first = judged.as_it_is
        return {
            "device": judged.target.title,
            "memory_bytes": judged.target.device.memory_bytes,
            "strategies": [_verdict_data(one) for one in judged.verdicts],
            "advice": [
                {"change": one.change, "why": one.why, "saved_bytes": one.saved_bytes, "answer": one.verdict.answer}
                for one in advice.advice(self._log, first)
            ],
            "largest_batch": None if batch is None else {"surely": batch.surely, "perhaps": batch.perhaps},
            "fewest_devices": {"surely": few.surely, "perhaps": few.perhaps},
            "choice": None if chosen is None or chosen.chosen is None else _verdict_data(chosen.chosen),
        }


def command(layout: Layout) -> str:
    """Return the option of echelon run, or the line of a script, for a strategy."""
    option = choice.how(layout)
    return f"echelon run --scale {option}" if option else f"run.parallelize(model, echelon.{layout.code})"


_HEAD = ("strategy", "devices", "rows at once", "needed", "verdict", "sent a step", "how")
_OUTSIDE = {
    "workspace": "workspaces of matrix products",
    "convolution": "workspaces of convolutions",
    "context": "the driver's context",
    "libraries": "kernels that an older stack loads at once",
    "communicator": "buffers of NCCL or RCCL",
    "hidden": "what the driver holds back",
}


def _row(judged: FitVerdict, traced_rows: int) -> tuple[str, ...]:
    layout = judged.layout
    rows = str(layout.rows_of_micro_batch(traced_rows)) if layout.rows or traced_rows else "–"
    sent = size(judged.memory.sent_bytes) if judged.memory.sent_bytes else "–"
    how = ""
    if layout.num_ranks > 1:
        option = choice.how(layout)
        how = f"--scale {option}" if option else layout.code
    return (layout.name, str(layout.num_ranks), rows, _span(judged), judged.answer, sent, how)


def _of_kinds(activations: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the modules with the most bytes; those that differ in their numbers alone are one: blocks.*.mlp."""
    kinds: Counter[str] = Counter()
    for name, num_bytes in activations.items():
        kinds[re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)] += num_bytes
    return kinds.most_common(MOST_MODULES)


def _span(judged: FitVerdict) -> str:
    return f"{size(judged.low_bytes)} to {size(judged.high_bytes)}"


def _numbers(surely: int, perhaps: int, noun: str, *, is_least: bool = False) -> str:
    if not surely and not perhaps:
        return "none fits"
    first, other = (perhaps, surely) if is_least else (surely, perhaps)
    if first == other:
        return counted(first, noun)
    if is_least:
        return f"{first} may be enough, " + (f"{counted(other, noun)} surely" if other else "none is sure")
    return (f"{counted(first, noun)} surely, " if first else "") + f"up to {other} perhaps"


def summary(judged: FitVerdict) -> dict[str, Any]:
    """Return a verdict as JSON fields, without what fills the memory."""
    return {
        "strategy": judged.layout.name,
        "scale": choice.how(judged.layout),
        "code": judged.layout.code if judged.layout.num_ranks > 1 else "",
        "low_bytes": judged.low_bytes,
        "high_bytes": judged.high_bytes,
        "answer": judged.answer,
    }


def _verdict_data(judged: FitVerdict) -> dict[str, Any]:
    peak = judged.memory.peak
    return {
        **summary(judged),
        "devices": judged.layout.num_ranks,
        "peak_bytes": peak.num_bytes,
        "allocated_bytes": judged.memory.allocated_bytes,
        "reserved_bytes": judged.memory.reserved_bytes,
        "sent_bytes": judged.memory.sent_bytes,
        "host_bytes": judged.memory.host_bytes,
        "phase": peak.phase,
        "block": peak.block,
        "parts": peak.parts,
        "activations": peak.activations,
        "outside": {part.kind: [part.low_bytes, part.high_bytes] for part in judged.overheads},
        "notes": judged.memory.notes,
    }
