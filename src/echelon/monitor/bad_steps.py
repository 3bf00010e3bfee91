"""Which step had the first value that is not finite, of all that ranks say of it; and the spikes of losses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from echelon.monitor.device_facts import Fact

NOT_FINITE, SPIKE = "value not finite", "spike"
KINDS = (NOT_FINITE, SPIKE)
_KIND_OF_NOTE = {"not finite": NOT_FINITE, "spike": SPIKE}
HELD_SECONDS = 2.0
"""A rank that only meets the bad weights of another one may be heard first: agents tell each second."""
MOST_SHOWN = 8
MOST_SPIKES = 3


def why_not(plan: Mapping[str, Any]) -> str:
    """Return why the steps of a run with this plan.json cannot be run again; empty if they can."""
    if not plan.get("is_python"):
        return "its program is no Python script"
    if plan.get("container"):
        return "its ranks were in a container"
    return "another launcher's command line has started it" if plan.get("launcher") else ""


class BadSteps:
    """Takes the notes of all ranks, and says the first bad step, and some spikes.

    `run` is the name of a run whose steps `echelon rehearse` can run again; empty: it cannot.
    """

    def __init__(self, run: str = "") -> None:
        self._run = run
        self._held: dict[str, Any] | None = None
        self._held_until = 0.0
        self._said: tuple[int, bool, int] | None = None
        self._num_spikes = 0

    def look(self, line: dict[str, Any]) -> list[Fact]:
        """Take the notes in a line of samples.jsonl; return what is to be said now."""
        now, facts = float(line["time"]), []
        for note in line.get("notes", ()):
            if _KIND_OF_NOTE.get(note["kind"]) == SPIKE:
                self._num_spikes += 1
                facts += [self._fact(SPIKE, note)] if self._num_spikes <= MOST_SPIKES else []
            elif self._said is None or _order(note) < self._said:
                self._held_until = self._held_until if self._held else now + HELD_SECONDS
                self._held = note if self._held is None or _order(note) < _order(self._held) else self._held
        is_certain = self._held is not None and self._held.get("weights") == "finite"
        if self._held is not None and (is_certain or now >= self._held_until):
            facts += self.rest()
        return facts

    def rest(self) -> list[Fact]:
        """Return what was held back until now."""
        held, self._held = self._held, None
        if held is None:
            return []
        self._said = _order(held)
        return [self._fact(NOT_FINITE, held)]

    def _fact(self, kind: str, note: dict[str, Any]) -> Fact:
        evidence = {name: value for name, value in note.items() if name != "kind"}
        command = [f"look into it: echelon rehearse --step {self._run}:{note['step']}"] if self._run else []
        return Fact(kind=kind, line="; ".join([_what(kind, note), *of_batch(note), *command]), evidence=evidence)


def _order(note: dict[str, Any]) -> tuple[int, bool, int]:
    """Return what sorts notes: of one step, the rank with the bad loss is before those that have met its weights."""
    return int(note["step"]), note["what"] == "weights", int(note["rank"])


def _what(kind: str, note: dict[str, Any]) -> str:
    step, rank, value = note["step"], note["rank"], note["value"]
    where = f"step {step}" + (f", pass {note['pass']} over its loader" if "pass" in note else "")
    if note["what"] == "weights":
        return f"{where}: the weights are not finite after it, and its loss on rank {rank} was {value}"
    name = "loss" if note["what"] == "loss" else "norm of the gradients"
    if kind == SPIKE:
        return f"{where}: the {name} of rank {rank} is {value}; the median of those before is {note['usual']:.4g}"
    known = {"finite": "; the weights were finite before", "not finite": "; the weights were not finite before either"}
    return f"{where}: the {name} of rank {rank} is {value}{known.get(note.get('weights', ''), '')}"


def of_batch(note: dict[str, Any]) -> list[str]:
    """Return the words about the samples of a note."""
    samples = note.get("samples", ())
    if not samples:
        return []
    number = note.get("num_samples", len(samples))
    shown = ", ".join(map(str, samples[:MOST_SHOWN])) + (f" … ({number} samples)" if number > MOST_SHOWN else "")
    owner = f"the batch of rank {note['rank']}" if note.get("what") == "weights" else "its batch"
    words = [f"{owner}: {'sample' if number == 1 else 'samples'} {shown}"]
    if note.get("bad_sample") is not None:
        words.append(f"sample {note['bad_sample']} itself has a value that is not finite")
    return words


def told(events: Iterable[dict[str, Any]], kinds: Sequence[str] = KINDS) -> list[str]:
    """Return the lines of the facts of some kinds that a run has said."""
    return [str(event["line"]) for event in events if event["event"] == "fact" and event.get("fact") in kinds]
