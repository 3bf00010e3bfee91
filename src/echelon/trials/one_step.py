"""Run one step of a run once more, on as many ranks, and say what in it was the first that is not finite."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from echelon.errors import RunError, UsageError
from echelon.host import Host, own_command
from echelon.launch import run_directory, runs
from echelon.monitor import attempts, bad_steps, recorded
from echelon.monitor.recorded import Recorded
from echelon.orders import checkpoint, codec, rehearsal
from echelon.orders.checkpoint import MEMORY, SEED, SUBFOLDER
from echelon.orders.rehearsal import Rehearsal
from echelon.orders.scale import OBSERVE, VARIABLE, ScaleOptions
from echelon.trials import own_runs, scratch
from echelon.trials.rehearse import TRACKERS
from echelon.units import counted

NEVER = "999999999steps"
_OWN = "ECHELON_"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepQuestion:
    """The step of a run."""

    recorded: Recorded
    name: str
    """Of the run, for messages."""
    step: int
    script: str
    num_ranks: int

    @property
    def note(self) -> dict[str, Any] | None:
        facts = [event for event in self.recorded.events if event.get("fact") in bad_steps.KINDS]
        return next((fact for fact in facts if fact.get("step") == self.step), None)


def read(text: str) -> StepQuestion:
    """Return the question of RUN:STEP; raise UsageError if there is no such step, or it cannot be run again here."""
    name, _, number = text.rpartition(":")
    if not name or not re.fullmatch(r"[1-9][0-9]{0,11}", number):
        raise UsageError(
            f"--step {text or repr('')}: give a run and a step of it", hint="echelon rehearse --step train-8f65:1234"
        )
    path = runs.find(name)
    run = recorded.read(path)
    short, step = runs.short_name(path), int(number)
    why_not = bad_steps.why_not(run.plan)
    if isinstance(run.plan.get("scale_options"), dict) and run.scale_options is None:
        why_not = "another version of echelon has made it"
    if why_not:
        raise UsageError(f"the steps of {short} cannot be run again: {why_not}", hint="echelon run SCRIPT")
    of_run = attempts.read(run)
    last = max((attempt.reached for attempt in of_run), default=0)
    if not last:
        raise UsageError(f"{short} has made no step of an optimizer of PyTorch", hint="echelon runs")
    if step > last + 1:  # a run may have failed in a step
        raise UsageError(
            f"{short} has made {counted(last, 'step')}, so there is no step {step}",
            hint=f"echelon rehearse --step {short}:{last}",
        )
    num_ranks = max(attempt.num_ranks for attempt in of_run)
    return StepQuestion(recorded=run, name=short, step=step, script=_script(run, short), num_ranks=num_ranks)


def _script(run: Recorded, name: str) -> str:
    """Return the script, or -m and the module; raise UsageError if the script is not where it was."""
    argv = run.plan["argv"]
    if argv[1] == "-m":
        return ""
    is_here = os.path.dirname(os.path.realpath(argv[1])) == os.path.realpath(run.plan["folder"])
    if not is_here or not os.path.isfile(argv[1]):
        raise UsageError(
            f"the script of {name} is {argv[1]} in {run.plan['folder']}, which is not in this folder",
            hint=f"cd to the folder where {name} was started",
        )
    return str(argv[1])


def _restarts_before(run: Recorded, step: int) -> int:
    """Return how often the ranks had been started again when the step was told: a seed may follow from it."""
    told = [
        float(event["time"])
        for event in run.events
        if event["event"] == "fact" and event.get("fact") in bad_steps.KINDS and event.get("step") == step
    ]
    before = min(told, default=math.inf)
    return sum(event["event"] == "restart" and float(event["time"]) < before for event in run.events)


class Rehearsed:
    """The step, run once more in a scratch copy of this folder."""

    def __init__(self, question: StepQuestion, host: Host, folder: str) -> None:
        self._asked, self._host, self._folder = question, host, folder
        self.begin = 0
        """The step of the checkpoint that it continues; 0: from the begin of the script."""

    def run(self, debugged: int = -1) -> dict[int, dict[str, Any]]:
        """Return what each rank has seen; raise RunError if the run ended before the step."""
        copy = os.path.join(self._folder, "copy")
        scratch.look(os.getcwd()).copy_to(copy)
        words = [*self._options(debugged), *self._command(copy)]
        if debugged < 0:
            output = own_runs.finish(self._host, words, folder=copy).stdout
        else:
            self._host.lead([*own_command.command(), "run", *words], environ=self._host.environ, folder=copy)
            output = ""
        seen = dict(self._seen())
        if len(seen) < self._asked.num_ranks:
            details = own_runs.without_logs(output)
            raise RunError(f"the run ended before its step {self._asked.step}{':' * bool(details)}", details=details)
        return seen

    def _seen(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for rank in range(self._asked.num_ranks):
            try:
                with open(os.path.join(self._folder, rehearsal.STEP_FILE % rank)) as file:
                    yield rank, json.load(file)
            except FileNotFoundError:
                continue

    def _command(self, copy: str) -> list[str]:
        argv = self._asked.recorded.plan["argv"]
        if not self._asked.script:
            return list(argv[1:])
        return [scratch.in_copy(self._asked.script, os.getcwd(), copy), *argv[2:]]

    def _options(self, debugged: int) -> list[str]:
        plan, run = self._asked.recorded.plan, self._asked.recorded
        num_nodes = max(1, int(plan["num_nodes"]))
        order = Rehearsal(
            folder=self._folder, scratch=self._folder, original=os.getcwd(), step=self._asked.step, debugged=debugged
        )
        variables = {name: value for name, value in plan["environ"] if not name.startswith(_OWN)}
        num_restarts = _restarts_before(run, self._asked.step)
        variables.update(TRACKERS)
        variables |= {
            rehearsal.VARIABLE: codec.write(order), MEMORY: "", "WANDB_DIR": self._folder,
            SEED: str(checkpoint.seed(str(plan["run_id"]), num_restarts)),
        }  # fmt: skip
        scale = self._scale()
        if scale[1] == "off":
            variables[VARIABLE] = ScaleOptions(how=OBSERVE).to_json()
        return [
            "-n", str(self._asked.num_ranks // num_nodes),
            *(["--nnodes", str(num_nodes)] if num_nodes > 1 else []),
            *(["--debug", str(debugged), "--hang-timeout", "off"] if debugged >= 0 else ["--show", "none"]),
            *(["--share-devices"] if plan.get("share_devices") else []),
            "--launch", str(plan["launch"]), "--max-restarts", "0", "--run-dir", os.path.join(self._folder, "run"),
            *scale, *self._checkpoints(),
            *(word for pair in variables.items() for word in ("--env", "=".join(pair))),
        ]  # fmt: skip

    def _scale(self) -> list[str]:
        options = self._asked.recorded.scale_options
        is_plain = self._asked.num_ranks == 1 and not self._asked.recorded.saves
        if options is None or (is_plain and not options.num_shards):
            return ["--scale", "off"]
        return ["--scale", options.how, *(word for option in options.written() for word in option.split(" "))]

    def _checkpoints(self) -> list[str]:
        """Return the options of a run that is saved; it continues from its newest checkpoint before the step."""
        if not self._asked.recorded.saves or self._asked.recorded.scale_options is None:
            return []
        source = checkpoint.folder(self._asked.recorded.plan["environ"])
        before = {step: name for step, name in run_directory.checkpoints(source).items() if step < self._asked.step}
        if not before:
            return ["--checkpoint-every", NEVER]
        self.begin, name = max(before.items())
        target = os.path.join(self._folder, "source")
        shutil.copytree(os.path.join(source, name), os.path.join(target, SUBFOLDER, name), copy_function=_linked)
        with open(os.path.join(target, "events.jsonl"), "w"):
            pass  # which makes it the folder of a run
        return ["--checkpoint-every", NEVER, "--resume", target]


def _linked(source: str, target: str) -> None:
    """Link a file of a checkpoint, or copy it onto another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def lines(seen: dict[int, dict[str, Any]]) -> list[str]:
    """Return what was seen, a line for each rank."""
    return [f"rank {rank}: {'; '.join(_of_rank(facts))}" for rank, facts in sorted(seen.items())]


def is_bad(facts: dict[str, Any]) -> bool:
    """Say whether a rank has seen a value that is not finite."""
    return bool(facts["module"] or facts["gradient"] or facts["weight"] or not _are_finite(facts["losses"]))


def _are_finite(losses: list[str]) -> bool:
    return all(math.isfinite(float(loss)) for loss in losses)


def _of_rank(facts: dict[str, Any]) -> Iterator[str]:
    losses, module = facts["losses"], facts["module"]
    yield f"loss {', '.join(f'{float(loss):.6g}' for loss in losses)}" if losses else "no loss is known"
    if facts["weight"]:
        yield f"{facts['weight']} is not finite before the step"
    if module is not None:
        yield _of_module(module)
    elif not _are_finite(losses):
        yield "all outputs of modules are finite, so the script's computation of the loss from them is not"
    elif facts["gradient"]:
        yield f"all outputs are finite, and the first gradient that is not is that of {facts['gradient']}"
    elif not facts["weight"]:
        yield "all outputs and gradients are finite"
    yield from bad_steps.of_batch(facts)


def _of_module(module: dict[str, Any]) -> str:
    shape = "×".join(map(str, module["shape"])) or "one number"
    counts = ((module["num_nan"], "nan"), (module["num_infinite"], "infinite"))
    kinds = [f"{number} {word}" for number, word in counts if number]
    others = f", the others {module['least']:.4g} to {module['most']:.4g}" if module["least"] is not None else ""
    is_input = "its input is finite" if module["input_is_finite"] else "its input is not finite either"
    return (
        f"the first output that is not finite is that of {module['name']} ({module['class']}), {module['dtype']} "
        f"{shape}: {' and '.join(kinds)} of {module['values']} values{others}; {is_input}"
    )
