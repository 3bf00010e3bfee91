"""`echelon fit --scaling --from RUN [RUN]`: how a training goes on with more devices, from sizes that were measured."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from echelon.cli.fits import OPTIONS as OF_MODEL
from echelon.cli.fits import read_model
from echelon.cli.options import Option
from echelon.cli.readers import plot_files
from echelon.cli.talk import print_table
from echelon.errors import UsageError

if TYPE_CHECKING:
    from echelon.estimate.speed.runs import NetworkSpeed, Refusal
    from echelon.machines.machine import Machine
    from echelon.trials.forecast import Forecast

OPTIONS: tuple[Option, ...] = (
    Option(names=("--scaling",), help="estimate the time of a step on more devices, from measured runs: --from"),
    Option(names=("--strong",), help="the global batch stays with more devices (default: as the runs show)"),
    Option(names=("--weak",), help="the batch of each device stays with more devices"),
    Option(names=("--node-type",), value="NAME", help="the kind of the machine's nodes, if it has several"),
    Option(names=("--plot",), value="NAME", takes="file", help="draw NAME.svg and NAME.png"),
    *(option for option in OF_MODEL if option.key in ("parameters", "dtype")),
)


def answer(values: Mapping[str, str], runs: Sequence[str]) -> ScalingAnswer:
    """Return what measured runs say of more devices.

    `values` are the given options by their keys: those of OPTIONS, and "machine". `runs` are run directories or their
    names, folders of `echelon bench scaling --out`, or files with what `echelon bench scaling --json` printed. Raises
    UsageError for options that contradict each other and for what holds no measured steps.
    """
    if "strong" in values and "weak" in values:
        raise UsageError("--strong and --weak are two kinds of scaling", hint="use the one of the runs")
    files = plot_files(values, usual="scaling")
    from echelon.estimate.speed.runs import STRONG, WEAK, Refusal
    from echelon.estimate.speed.throughput import fit
    from echelon.trials import measured_sizes

    model = read_model({key: value for key, value in values.items() if key in ("parameters", "dtype")})
    measured = measured_sizes.read(runs, gradient_bytes=model.weight_bytes if model is not None else None)
    machine = _machine(values, measured.machine)
    if machine is not None:
        measured = measured.on_nodes_of(_node_devices(machine, values))
    asked = STRONG if "strong" in values else WEAK if "weak" in values else ""
    law = fit(measured.runs, mode=asked or measured.mode, network=_network(machine, values))
    if isinstance(law, Refusal):
        return ScalingAnswer(None, law, files=())
    from echelon.trials.forecast import Forecast

    forecast = Forecast(measured, law)
    return ScalingAnswer(forecast, None, files=files, trust=_remember(forecast))


def _remember(forecast: Forecast) -> str:
    from echelon.estimate import remembered
    from echelon.estimate.remembered import TimePrediction
    from echelon.machines import kept_rows

    measured = forecast.measured
    trainings = sorted(measured.trainings, key=lambda training: training.num_ranks)
    num_scripts = len({(training.digest, training.script, training.arguments) for training in trainings})
    if num_scripts == 1 and trainings[-1].num_ranks > 1:
        rows = remembered.estimates(trainings[-1], forecast.sizes, machine=measured.machine, time=time.time())
        kept_rows.add(TimePrediction.FILE, [row.as_row() for row in rows], os.environ)
    return remembered.trust_time(kept_rows.read(TimePrediction.RATIOS, os.environ), machine=measured.machine)


def _machine(values: Mapping[str, str], used: str) -> Machine | None:
    from echelon.machines import load

    if "machine" in values:
        return load.find(values["machine"], os.environ)
    return load.load_named(used, os.environ) if used else None


def _node_devices(machine: Machine, values: Mapping[str, str]) -> int | None:
    """Return the devices of a node; None if the machine has several kinds of nodes and none was named."""
    kinds = {kind.name: kind.num_devices for kind in machine.node_types if kind.num_devices}
    if "node_type" in values and values["node_type"] not in {kind.name for kind in machine.node_types}:
        raise UsageError(
            f"--node-type {values['node_type'] or repr('')}: {machine.title} has "
            f"{', '.join(kind.name for kind in machine.node_types)}",
            hint=f"--node-type {machine.node_types[0].name}",
        )
    if "node_type" in values:
        return kinds.get(values["node_type"])
    return next(iter(kinds.values())) if len(set(kinds.values())) == 1 else None


def _network(machine: Machine | None, values: Mapping[str, str]) -> NetworkSpeed | None:
    from echelon.estimate.speed.runs import of_machine

    return of_machine(machine, values.get("node_type", "")) if machine is not None else None


class ScalingAnswer:
    """The estimate, or why there is none."""

    def __init__(
        self, forecast: Forecast | None, refusal: Refusal | None, *, files: tuple[str, ...], trust: str = ""
    ) -> None:
        self._forecast, self._refusal, self._files, self._trust = forecast, refusal, files, trust

    @property
    def exit_code(self) -> int:
        """0, or 1 where nothing could be estimated."""
        return 0 if self._forecast is not None and self._forecast.sizes else 1

    def as_data(self) -> dict[str, Any]:
        if self._forecast is None:
            refusal = self._refusal
            return {"refused": {"reason": refusal.reason, "repair": refusal.repair} if refusal is not None else None}
        self._draw()
        return {"refused": None, **self._forecast.as_data(), "trust": self._trust}

    def print(self) -> None:
        if self._forecast is None:
            if self._refusal is not None:
                print_table(f"not estimated: {self._refusal.reason}\nway out: {self._refusal.repair}\n")
            return
        self._draw()
        print_table(self._forecast.text())
        if self._trust:
            print(self._trust)
        for path in self._files:
            print(path)

    def _draw(self) -> None:
        if self._files and self._forecast is not None:
            self._forecast.draw(self._files)
