"""Run a script several times and compare what it did: on one rank, on one in another order, on several."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from echelon.errors import EchelonError, RunError, UsageError
from echelon.host import Host, own_command
from echelon.launch.run_directory import shared_folder
from echelon.monitor.page import plots
from echelon.orders import codec, records
from echelon.orders.scale import DTENSOR
from echelon.trials import own_runs
from echelon.trials.own_runs import Say, TriedScript
from echelon.units import counted

OFF, DATA = "off", "data"
COMPARE_SECONDS = 3600.0
MOST_GAIN = 1.5
"""How much more than the number of ranks a step may gain: a part of a batch may fit into a cache."""
FAILED = "FAILED"
SYNC_BATCH_NORM = "--sync-bn"
REORDERED = "reordered"  # the folder of the record of one rank with its samples in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofQuestion(TriedScript):
    """What is to be proved."""

    options_of_several: tuple[str, ...]
    """Of `echelon run`, for the runs on several ranks: how they train."""
    options_of_one: tuple[str, ...]
    """Of these, what makes the global batch larger: one device has that of all ranks."""
    num_ranks: int
    num_steps: int
    scales: tuple[str, ...]
    """Each is compared with one device; empty: as the script is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """One run that is recorded."""

    name: str
    num_ranks: int
    scale: str
    title: str
    order: Mapping[str, Any]
    """Fields of the order to record."""


def prove(question: ProofQuestion, host: Host, say: Say) -> dict[str, Any]:
    """Return the verdict for each scale as `proof.compare` gives it; raise where nothing can be compared."""
    from echelon.script import distributes

    if find_spec("torch") is None:
        raise UsageError("the Python of echelon has no PyTorch, which compares the tensors", hint="pip install torch")
    how = distributes.how(own_runs.imports_of(question.script, is_module=question.is_module, command="prove"))
    scales = question.scales or ((OFF,) if how else (DATA,))
    if how and scales != (OFF,):
        raise UsageError(
            f"{question.script} distributes itself: {how}; scaled, it would share the work twice",
            hint=f"echelon prove -n {question.num_ranks} --scale off {question.script}",
        )
    with shared_folder("prove", "the runs write their records there") as folder:
        prover = _Prover(folder, question, host, say, is_ours="echelon" in how)
        for scale in scales:
            prover.refuse_what_cannot_run(scale)
        runs = prover.own() if scales == (OFF,) and not prover.is_ours else prover.scaled(scales)
    return {
        "num_ranks": question.num_ranks,
        "is_wrong": any(run["is_wrong"] for run in runs),
        "is_equal": all(run["verdict"] in (records.EQUAL, records.WITHIN) for run in runs),
        "runs": [{"scale": scale, **run} for scale, run in zip(scales, runs, strict=True)],
    }


class _Prover:
    """Starts the runs, checks that each was what was asked for, and compares their records."""

    def __init__(
        self, folder: str, question: ProofQuestion, host: Host, say: Say, *, is_ours: bool, is_double: bool = False
    ) -> None:
        self._folder = folder
        self._is_double = is_double
        self._asked = question
        self._host = host
        self._say = say
        self.is_ours = is_ours
        """Whether the script calls `echelon.start()`, which records by itself."""

    def scaled(self, scales: tuple[str, ...]) -> list[dict[str, Any]]:
        """Compare each way to scale a script for one device with one device."""
        alone = scales[0] if scales[0] == OFF else DATA
        oracle = self._run(_Start(name="one", num_ranks=1, scale=alone, title="1 rank", order={}))
        again = self._again(alone, oracle, {})
        verdicts = []
        for scale in scales:
            try:
                verdict = self._compared(oracle, again, self._several(scale, len(scales) > 1), "scaled")
                verdict = self._with_way_out(verdict, scale)
                verdicts.append(self._decided(verdict, functools.partial(_Prover.scaled, scales=(scale,))))
            except EchelonError as error:
                if len(scales) == 1:
                    raise
                verdicts.append({"verdict": FAILED, "is_wrong": True, "why": str(error), "hint": error.hint})
        return verdicts

    def _with_way_out(self, verdict: dict[str, Any], scale: str) -> dict[str, Any]:
        """Add --sync-bn to the cause of a difference, if it is a BatchNorm and `echelon run` takes the option here."""
        if not verdict.get("is_of_batch_norm"):
            return verdict
        start = _Start(name="synced", num_ranks=self._asked.num_ranks, scale=scale, title="", order={})
        words = [*self._options(start), SYNC_BATCH_NORM, *self._asked.command]
        try:
            own_runs.refuse_what_cannot_run(self._host, words, command="prove")
        except UsageError:
            return verdict
        way_out = f"; {SYNC_BATCH_NORM} takes the statistics of the whole batch, as one device does"
        return {**verdict, "meaning": verdict["meaning"] + way_out}

    def own(self) -> list[dict[str, Any]]:
        """Compare a script that distributes itself with one process that has the batches of all its ranks."""
        try:
            several = self._several(OFF, False)
        except RunError:
            difference = self._alone(f"several-{OFF}")
            if not difference:
                raise
            return [difference]
        like = {"like": os.path.join(several, records.ABOUT)}
        oracle = self._run(_Start(name="one", num_ranks=1, scale=OFF, title="1 rank", order=like))
        for note in _read_about(oracle)["notes"]:
            self._say(f"note: {note}")
        about = _read_about(oracle)
        again = self._again(OFF, oracle, like, has_loader=about["num_batches"] > 0 and not about.get("draws"))
        return [self._decided(self._compared(oracle, again, several, "own"), _Prover.own)]

    def refuse_what_cannot_run(self, scale: str) -> None:
        """Raise UsageError, before anything is started, for what `echelon run` will not accept."""
        start = _Start(name="dry", num_ranks=self._asked.num_ranks, scale=scale, title="", order={})
        own_runs.refuse_what_cannot_run(self._host, [*self._options(start), *self._asked.command], command="prove")

    def _several(self, scale: str, is_named: bool) -> str:
        title = f"{self._asked.num_ranks} ranks" + (f", --scale {scale}" if is_named else "")
        name = "several-" + re.sub(r"[^A-Za-z0-9]+", "-", scale)  # of a folder that PYTHONPATH can hold
        start = _Start(name=name, num_ranks=self._asked.num_ranks, scale=scale, title=title, order={})
        record = self._run(start)
        _refuse_less(_read_about(record), start)
        return record

    def _again(self, scale: str, oracle: str, order: Mapping[str, Any], *, has_loader: bool = True) -> str:
        """Return a record that shows how far rounding carries this script."""
        again = self._reordered(scale, order, has_loader=has_loader)
        first, other = _first_loss(oracle), _first_loss(again)
        if not has_loader or not abs(first - other) > records.MOST_STRAY * max(abs(first), abs(other)):
            return again
        self._say(
            "note: the first loss depends on the order of the samples in a batch, as with mixup, pairs of samples "
            "or noise that is drawn in their order; "
            "echelon changes gradients instead to measure rounding"
        )
        return self._reordered(scale, order, has_loader=False)

    def _reordered(self, scale: str, order: Mapping[str, Any], *, has_loader: bool = True) -> str:
        how = "the samples of each batch in another order" if has_loader else "each gradient with its last bit changed"
        start = _Start(
            name=REORDERED if has_loader else "nudged", num_ranks=1, scale=scale, title=f"1 rank, {how}",
            order={**order, "is_reordered" if has_loader else "is_nudged": True},
        )  # fmt: skip
        return self._run(start)

    def _run(self, start: _Start) -> str:
        """Return the folder of a run's record."""
        record = os.path.join(self._folder, start.name)
        os.mkdir(record)
        self._say(f"{start.title}{', in float64' if self._is_double else ''} …")
        done = own_runs.finish(self._host, [*self._options(start), *self._asked.command])
        ranks = counted(start.num_ranks, "rank")
        if done.exit_code != 0:
            raise RunError(f"the run on {ranks} failed:", details=own_runs.without_logs(done.stdout))
        if not os.path.exists(os.path.join(record, records.ABOUT)):
            raise RunError(
                f"the script ended on {ranks} without a step of a torch.optim optimizer, so there is nothing "
                "to compare",
                hint="the script must train in its own process, with an optimizer of torch.optim",
            )
        return record

    def _options(self, start: _Start) -> list[str]:
        record = os.path.join(self._folder, start.name)
        order = records.RecordOrder(record, self._asked.num_steps, self._asked.num_ranks, is_double=self._is_double)
        variables = {
            "PYTHONHASHSEED": "0",  # the order of a set of names is the same in all runs
            records.VARIABLE: codec.write(order._replace(**start.order)),
        }
        options = own_runs.variables(variables, observes=start.scale == OFF and not self.is_ours)
        return [
            "--nnodes", "1", "-n", str(start.num_ranks),
            "--scale", start.scale, "--show", "none", "--run-dir", os.path.join(self._folder, f"run-{start.name}"),
            *options, *self._asked.options,
            *(self._asked.options_of_several if start.num_ranks > 1 else self._asked.options_of_one),
        ]  # fmt: skip

    def _alone(self, name: str) -> dict[str, Any]:
        """Return what the record of a run that failed shows by itself; empty where it shows nothing."""
        record = os.path.join(self._folder, name)
        told = self._ask(["--alone", record, str(self._asked.num_ranks)])
        return {**told, "is_wrong": True, "steps": [], "tensors": []} if told else {}

    def _ask(self, words: list[str]) -> dict[str, Any]:
        command = [*own_command.module("echelon.trials.proof.compare"), *words]
        done = self._host.ask(command, timeout_seconds=COMPARE_SECONDS)
        if done.exit_code != 0:
            raise RunError("echelon could not compare the records:", details=done.stderr)
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def _compared(self, oracle: str, again: str, other: str, kind: str) -> dict[str, Any]:
        noise = ["noisy"] if _is_noisy(oracle, os.path.join(self._folder, REORDERED)) else []
        synced = ["synced"] if SYNC_BATCH_NORM in self._asked.options_of_several else []
        result = self._ask([oracle, again, other, str(self._asked.num_ranks), kind, *synced, *noise])
        if result["is_unknown"]:
            raise RunError(f"{result['verdict']}: {result['why']}", hint=result["hint"])
        return {**result, "had": _read_about(other)}

    def _decided(
        self, verdict: dict[str, Any], prove_again: Callable[[_Prover], list[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Return the verdict; where rounding may have moved the steps after the first, that in float64 decides.

        An optimizer that divides by a gradient's own size makes a whole step of the rounding of a gradient near zero.
        """
        if self._is_double or not verdict.get("may_be_rounding"):
            return verdict
        step = verdict["first_step"]
        self._say(f"note: from step {step} on the runs differ; float64 shows whether that is rounding alone")
        folder = tempfile.mkdtemp(prefix="double-", dir=self._folder)
        double = _Prover(folder, self._asked, self._host, self._say, is_ours=self.is_ours, is_double=True)
        try:
            (decided,) = prove_again(double)
        except EchelonError as error:
            self._say(f"note: float64 cannot decide, so the verdict stays: {str(error).splitlines()[0].rstrip(':')}")
            return verdict
        if decided["is_wrong"] or decided["num_telling"] < step:
            return verdict
        doubt = {"from_step": step, "why": verdict["why"]}
        kept = {"steps": verdict["steps"], "step_seconds": verdict["step_seconds"], "had": verdict["had"]}
        return {**decided, **kept, "verdict": records.WITHIN, "num_telling": step - 1, "float64_decides": doubt}


def _refuse_less(about: Mapping[str, Any], start: _Start) -> None:
    """Raise RunError where a run had fewer ranks, or less sharding, than was asked for."""
    if not about["is_joined"] and start.scale != OFF:
        raise RunError(
            "the ranks share nothing: the script calls no backward(), and takes no batch from a DataLoader with "
            f"gradients on; each of the {start.num_ranks} ranks trained the whole model by itself",
            hint="compute gradients with loss.backward(); or train on one rank: echelon run -n 1 …",
        )
    if not about["is_joined"]:
        raise RunError(
            f"echelon started {start.num_ranks} ranks, but the script never initialized torch.distributed: "
            "each rank trained alone",
            hint="call torch.distributed.init_process_group() before the model is made, or, for a script for one "
            "device: --scale data",
        )
    if about["world_size"] != start.num_ranks:
        raise RunError(
            f"you asked for {start.num_ranks} ranks, but the script's torch.distributed has {about['world_size']}",
            hint="call torch.distributed.init_process_group() without rank and world_size: the environment has them",
        )
    if start.scale in DTENSOR and not about["num_sharded"]:
        raise RunError(f"you asked for sharding, but of {about['num_parameters']} parameters none is sharded")


def _first_loss(record: str) -> float:
    """Return the loss of the first step; NaN where the script had none that a record knows."""
    loss = _first_step(record).get("loss")
    return math.nan if loss is None else float(loss)


def _is_noisy(oracle: str, reordered: str) -> bool:
    """Say whether the first step of two runs has the same samples of the data set, with other values."""
    if not os.path.exists(reordered):
        return False
    first, other = _first_step(oracle), _first_step(reordered)
    return first["chosen"] is not None and first["chosen"] == other["chosen"] and first["digest"] != other["digest"]


def _first_step(record: str) -> dict[str, Any]:
    with open(os.path.join(record, records.STEPS_FILE % 0), encoding="utf-8") as file:
        step: dict[str, Any] = json.loads(file.readline() or "{}")
    return step


def _read_about(record: str) -> dict[str, Any]:
    with open(os.path.join(record, records.ABOUT), encoding="utf-8") as file:
        about: dict[str, Any] = json.load(file)
    return {"notes": [], **about}


def refuse_what_cannot_be_drawn(path: str) -> None:
    """Raise UsageError before any run if a plot could not be written."""
    if not path.endswith(".png"):
        raise UsageError(f"--plot {path or repr('')}: give the name of a PNG file", hint="--plot prove.png")
    plots.refuse_unwritable(path, path, usual="prove.png")


def draw(result: Mapping[str, Any], path: str) -> None:
    """Plot the losses of one device and of several ranks as PNG, and their difference below."""
    runs = [run for run in result["runs"] if run.get("steps")]
    losses, apart = [], []
    for run in runs[:1]:
        one = _points(run, "one")
        losses.append(plots.Line(name="1 rank", points=one, colour=plots.INK, width=3.0, alpha=0.35))
        apart.append(plots.Line(name="rounding", points=_points(run, "bound"), colour=plots.INK, alpha=0.35))
    for number, run in enumerate(runs):
        label = f"{result['num_ranks']} ranks" + (f", {run['scale']}" if len(result["runs"]) > 1 else "")
        colour = plots.LINES[number % len(plots.LINES)]
        told = f"{label}: {run['verdict']}"
        losses.append(plots.Line(name=told, points=_points(run, "other"), style="--", colour=colour))
        differences = [(step, max(value, 1e-12)) for step, value in _points(run, "difference")]
        apart.append(plots.Line(name=label, points=differences, style=".", colour=colour))
    panels = [
        plots.Panel(x="step", y="loss", lines=losses),
        plots.Panel(x="step", y="relative difference", lines=apart, logarithmic="y" if runs else ""),
    ]
    plots.save(panels, [path], size=(8, 7), heights=(3, 2))


def _points(run: Mapping[str, Any], key: str) -> list[plots.Point]:
    rows = run["steps"]
    return [(row["step"], float("nan") if row["loss"][key] is None else row["loss"][key]) for row in rows]
