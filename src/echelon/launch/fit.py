"""Trace a training in a process of its own, which computes nothing and needs no device."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from echelon.errors import RunError, UsageError
from echelon.estimate import choice, log, timeline
from echelon.estimate.layout import Layout
from echelon.estimate.log import EventLog
from echelon.host import Host, own_command
from echelon.orders import codec
from echelon.orders.scale import KINDS, MODEL_PARALLEL
from echelon.orders.trace import SCRIPT, TraceOrder
from echelon.script import distributes
from echelon.script.imports import Imports
from echelon.script.reading import ScriptReading
from echelon.spec import Command
from echelon.units import duration

PROGRAM = "echelon.tracing"
PATIENCE_SECONDS = 1800.0
TELL_SECONDS, MOST_SILENT_SECONDS = 20.0, 120.0
_OF_FUNCTION = "a function that returns the model and a batch of one device: echelon fit module:function"
_OF_TRAINER = 'let the script use one device: devices=1, strategy="auto"'
_REPAIRS = {
    "MisconfigurationException": f"echelon fit traces one device; {_OF_TRAINER}",  # of Lightning
    "FileNotFoundError": "let the script find its data, or give a function that returns a model and a batch: "
    "echelon fit module:function",
    "ModuleNotFoundError": "install it into the Python of echelon, which traces",
    "DataDependentOutputException": "give the value that the line reads: --assume LINE=VALUE",
    "DynamicOutputShapeException": "give a function that returns a model and a batch: echelon fit module:function",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTraining:
    """A training that was traced."""

    log: EventLog
    optimizers: tuple[str, ...]
    num_steps: int
    num_parameters: int
    dtypes: tuple[str, ...]
    """The types of the weights, those of the most weights first."""
    uses_device: bool
    """Whether the script moves its training to a device; if not, all of it is counted as if it did."""
    seconds: float
    refusal: str
    """Why `echelon run` would not scale the script; empty: nothing is known against it."""
    is_own: bool
    """Whether the reason is that the script distributes itself."""

    def refusal_of(self, layout: Layout) -> str:
        """Say why `echelon run` would refuse this way to scale; empty if nothing is known against it."""
        how = choice.how(layout)
        if not (how and self.refusal) or (not self.is_own and how in MODEL_PARALLEL):
            return ""
        way_out = "; it chooses the strategy by its own options, and echelon run starts its ranks"
        return f"echelon run --scale {how} would refuse it: {self.refusal}{way_out if self.is_own else ''}"

    def doubt_of(self, layout: Layout) -> str:
        """Return the end of a sentence that recommends a layout: what no trace shows; empty if no rank has a part."""
        how = choice.how(layout)
        if how not in KINDS or how in MODEL_PARALLEL or self.refusal_of(layout):
            return ""
        return "; a trace does not show whether the model mixes samples, which run refuses"


def trace(question: TraceOrder, host: Host, tell: Callable[[str], None] = lambda _: None) -> TracedTraining:
    """Run a script up to its second step without computing it; UsageError or RunError say why that cannot be.

    `tell` is called with how far a long trace is.
    """
    if find_spec("torch") is None:
        raise UsageError(
            "the Python of echelon has no PyTorch, but echelon fit traces with it", hint="pip install torch"
        )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "log.json")
        words = [*own_command.module(PROGRAM), codec.write(question._replace(out=out))]
        environ = {name: value for name, value in host.environ.items() if not name.startswith("ECHELON_")}
        with telling(out + ".progress", tell):
            done = host.ask(words, timeout_seconds=PATIENCE_SECONDS, environ=environ)
        if not os.path.exists(out):
            raise RunError(f"{question.target} was not traced:", details=done.stderr.strip())
        with open(out, encoding="utf-8") as file:
            data = json.load(file)
    if "message" in data:  # this PyTorch cannot be traced
        raise UsageError(data["message"], hint=data["hint"])
    return _read(question, data, time.monotonic() - began)


@contextmanager
def telling(path: str, tell: Callable[[str], None], first_seconds: float = TELL_SECONDS) -> Iterator[None]:
    """Tell what a file says after some seconds, and then each time after twice as long."""
    ended = threading.Event()

    def follow() -> None:
        began, seconds = time.monotonic(), first_seconds
        while not ended.wait(seconds):
            passed = duration(time.monotonic() - began)
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    tell(f"still tracing after {passed}: {file.read()}")
            seconds = min(2 * seconds, MOST_SILENT_SECONDS)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _read(question: TraceOrder, data: dict[str, Any], seconds: float) -> TracedTraining:
    if not data["steps"]:
        _refuse(question, data["failed"])
    if data["failed"]:
        data["notes"].append(f"after the traced step the script fails: {_told(data['failed'])}")
    weights: dict[str, int] = {}
    for weight in data["weights"]:
        weights[weight["dtype"]] = weights.get(weight["dtype"], 0) + weight["bytes"]
    traced, how = log.read(data), _own_distribution(question)
    return TracedTraining(
        log=timeline.repeated(traced) if data["steps"] == 1 else traced,
        optimizers=tuple(dict.fromkeys(data["optimizers"])),
        num_steps=data["steps"],
        num_parameters=sum(weight["elements"] for weight in data["weights"]),
        dtypes=tuple(sorted(weights, key=lambda name: -weights[name])),
        uses_device=data["uses_device"],
        seconds=seconds,
        refusal=f"the script distributes itself: {how}" if how else data["unshared"],
        is_own=bool(how),
    )


def _refuse(question: TraceOrder, failed: dict[str, str] | None) -> None:
    """Say why no step of the training was reached."""
    if failed is None:
        raise UsageError(
            f"{question.target} ends without a step of an optimizer of PyTorch, so there is nothing to trace",
            hint="a script that trains; or a function that returns a model and a batch: echelon fit module:function",
        )
    if failed["kind"] == "Distributes":
        where = f" at {failed['line']}" if failed["line"] else ""
        raise UsageError(
            f"{question.target} distributes itself: init_process_group() is called{where}, and echelon fit traces "
            "scripts for one device",
            hint=f"{_OF_TRAINER}; {_OF_FUNCTION}" if _has_trainer(question) else _OF_FUNCTION,
        )
    if _has_trainer(question):
        raise UsageError(
            f"{question.target} cannot be traced: {_told(failed)}", hint=_REPAIRS.get(failed["kind"], _OF_FUNCTION)
        )
    how = _own_distribution(question)
    if how:
        raise UsageError(
            f"{question.target} distributes itself ({how}), and echelon fit traces scripts for one device",
            hint=_OF_FUNCTION,
        )
    raise UsageError(
        f"{question.target} cannot be traced: {_told(failed)}",
        hint=_REPAIRS.get(failed["kind"], "python " + question.target if question.kind == SCRIPT else ""),
        details="" if failed["kind"] in _REPAIRS or not failed["line"] else failed["trace"].strip(),
    )


def _told(failed: Mapping[str, str]) -> str:
    where = f" at {failed['line']}" if failed["line"] else ""
    return f"{failed['kind']}{where}: {failed['message']}"


def _own_distribution(question: TraceOrder) -> str:
    """Return how a script distributes itself, from reading it; empty if it does not."""
    return distributes.how(_imports(question)) if question.kind == SCRIPT else ""


def _has_trainer(question: TraceOrder) -> bool:
    """Say whether a script leaves its training to a framework, which distributes it on several devices only."""
    return question.kind == SCRIPT and distributes.has_trainer(_imports(question))


def _imports(question: TraceOrder) -> Imports:
    return ScriptReading(Command(kind="script", target=question.target), search_path=()).imports
