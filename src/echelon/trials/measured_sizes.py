"""Read measured sizes of a training: run directories, a benchmark's folder, or the JSON that a benchmark printed."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.estimate.remembered import StartedTraining
from echelon.estimate.speed.runs import SizeRun
from echelon.host import Host
from echelon.launch import runs as run_directories
from echelon.monitor import account as accounts
from echelon.monitor import predicted, recorded, report
from echelon.monitor.account import Account
from echelon.monitor.recorded import Recorded
from echelon.trials import efficiency, records, scaling_jobs, scaling_report

MOST_BYTES = 1 << 24
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSizes:
    """What the user measured."""

    runs: tuple[SizeRun, ...]
    num_nodes: Mapping[int, int]
    """Of each number of ranks; unknown ones are missing."""
    mode: str
    """As the benchmark was made; empty: unknown."""
    command: str
    """Empty: unknown."""
    machine: str
    """Empty: unknown."""
    used: tuple[str, ...]
    """A sentence for each run directory: its machine, processes, time, energy and bill."""
    trainings: tuple[StartedTraining, ...] = ()
    """The training of each run directory whose script can still be read."""

    def on_nodes_of(self, num_devices: int | None) -> MeasuredSizes:
        """Return the same for nodes of so many devices, where the runs do not tell it themselves; None: unknown."""
        runs = tuple(
            run if run.ranks_per_node is not None else replace(run, ranks_per_node=num_devices) for run in self.runs
        )
        return replace(self, runs=runs)


def read(names: Sequence[str], *, gradient_bytes: int | None = None) -> MeasuredSizes:
    """Read all that is named; raise UsageError for what holds no measured steps, or for nothing."""
    if not names:
        raise UsageError("--scaling needs measured runs", hint="--scaling --from RUN RUN   two runs of other sizes")
    parts = [_read_one(name, gradient_bytes) for name in names]
    modes = {part.mode for part in parts if part.mode}
    return MeasuredSizes(
        runs=tuple(run for part in parts for run in part.runs),
        num_nodes={number: nodes for part in parts for number, nodes in part.num_nodes.items()},
        mode=modes.pop() if len(modes) == 1 else "",
        command=next((part.command for part in parts if part.command), ""),
        machine=next((part.machine for part in parts if part.machine), ""),
        used=tuple(sentence for part in parts for sentence in part.used),
        trainings=tuple(training for part in parts for training in part.trainings),
    )


def _read_one(name: str, gradient_bytes: int | None) -> MeasuredSizes:
    if os.path.isfile(os.path.join(name, records.NAME)):
        question, measured = scaling_jobs.read(name, Host())
        return _of_fields(name, scaling_report.as_plain(question, efficiency.rows(question, measured)), gradient_bytes)
    if os.path.isfile(name):
        return _of_fields(name, _json(name), gradient_bytes)
    return _of_run(run_directories.find(name), gradient_bytes)


def _json(path: str) -> Any:
    try:
        return json.loads(regular_files.read(path, most_bytes=MOST_BYTES))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="echelon runs") from None
    except ValueError as error:
        raise _foreign(path, str(error)) from None


def _foreign(path: str, why: str) -> UsageError:
    return UsageError(
        f"{path} is not what echelon bench scaling --json prints: {why}",
        hint="echelon bench scaling --json … > scaling.json",
    )


def _of_fields(path: str, fields: Any, gradient_bytes: int | None) -> MeasuredSizes:
    try:
        if fields["format"] > FORMAT:
            raise UsageError(
                f"{path} has format {fields['format']}, and this echelon reads formats up to {FORMAT}",
                hint="use the echelon that made the benchmark, or a newer one",
            )
        sizes = [size for size in fields["sizes"] if size["steps_per_second"]]
        measured = [_run_of_size(size, str(fields["script"]), gradient_bytes) for size in sizes]
        nodes = {int(size["ranks"]): int(size["nodes"]) for size in sizes if size["nodes"]}
        mode, command = str(fields["mode"]), str(fields["script"])
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise _foreign(path, f"{type(error).__name__} {error}") from None
    if not measured:
        raise UsageError(
            f"{path}: no size of this benchmark has numbers", hint="echelon bench scaling --read DIRECTORY"
        )
    return MeasuredSizes(runs=tuple(measured), num_nodes=nodes, mode=mode, command=command, machine="", used=())


def _run_of_size(size: Mapping[str, Any], script: str, gradient_bytes: int | None) -> SizeRun:
    rate = size["steps_per_second"]
    value, least, most = float(rate["value"]), float(rate["least"]), float(rate["most"])
    samples, ranks, nodes = size["samples_per_second"], int(size["ranks"]), int(size["nodes"])
    if not all(math.isfinite(number) and number > 0 for number in (value, least, most)):
        raise ValueError(f"a rate of {value} steps a second")
    return SizeRun(
        num_devices=ranks,
        step_seconds=1 / value,
        spread=min(0.99, max(most / value - 1, 1 - least / value)),
        global_batch=float(samples) / value if samples else None,
        ranks_per_node=-(-ranks // nodes) if nodes > 1 else None,
        script=os.path.basename(script),
        gradient_bytes=gradient_bytes,
    )


def _of_run(path: str, gradient_bytes: int | None) -> MeasuredSizes:
    """Return the size of a run directory; raise UsageError if it has too few steps, or if others wrote its files."""
    try:
        return _of_files(path, gradient_bytes)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError) as error:
        raise UsageError(
            f"{path} has a file that echelon did not write: {type(error).__name__} {error}", hint="echelon runs"
        ) from None


def _of_files(path: str, gradient_bytes: int | None) -> MeasuredSizes:
    files = recorded.read(path)
    account = accounts.of_run(files)
    name = run_directories.short_name(path)
    measured = predicted.steady_steps_of_run(files, account)
    if measured is None:
        made = account.steps.number if account.steps is not None else 0
        raise UsageError(
            f"run {name} made {made} optimizer steps, and a rate needs at least {predicted.FEWEST_STEPS}",
            hint="echelon run -n N train.py   long enough for its first steps to warm up",
        )
    words = [str(word) for word in files.plan.get("argv") or ()]
    per_second, spread = measured
    training = predicted.training_of_run(files, account.num_ranks)
    run = SizeRun(
        num_devices=account.num_ranks,
        step_seconds=1 / per_second,
        spread=spread,
        global_batch=_global_batch(account),
        ranks_per_node=_ranks_per_node(files, account),
        strategy=str((files.plan.get("scale_options") or {}).get("how") or ""),
        script=os.path.basename(next((word for word in words if word.endswith(".py")), "")),
        gradient_bytes=gradient_bytes,
    )
    return MeasuredSizes(
        runs=(run,),
        num_nodes={run.num_devices: account.num_nodes} if account.num_nodes else {},
        mode="",
        command=shlex.join(["python", *words[1:]] if files.plan.get("is_python") else words),
        machine=str(files.booking.get("machine") or ""),
        used=(report.used(files, account),),
        trainings=(training,) if training is not None else (),
    )


def _global_batch(account: Account) -> float | None:
    """Return the samples of a step, as a whole number where they are one but for the last batches."""
    if account.training is None or account.training.samples_per_second is None or account.steps is None:
        return None
    return account.training.samples_per_second / account.steps.per_second or None


def _ranks_per_node(files: Recorded, account: Account) -> int | None:
    """Return the devices of a node; None where a run has neither devices nor several nodes."""
    if account.num_nodes > 1:
        return max(account.num_devices // account.num_nodes, int(files.plan.get("ranks_per_node") or 1))
    return account.num_devices or None
