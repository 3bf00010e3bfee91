"""What writes points with a tracker's own library, which is imported when a writer opens."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from echelon.monitor.track.points import CurvePoint
from echelon.spec import Tracker

MOST_CHARACTERS, MOST_PARAMETERS, MOST_METRICS = 500, 100, 900
"""Of a parameter, and at a time, as all versions of MLflow take them."""

SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # newer versions ask whether a folder is meant
    "MLFLOW_DISABLE_TELEMETRY": "true",  # a node may have no network, and nobody asked for it
    "WANDB_ERROR_REPORTING": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """What a tracker is told of a run when its writer opens."""

    name: str
    label: str
    """The name of the script, which groups runs."""
    began: float
    configuration: Mapping[str, str]


class Writer(Protocol):
    """Writes to one tracker; `view` is the command that shows what was written."""

    view: str

    def open(self, run: TrackedRun, identity: str) -> str:
        """Begin, or go on with the run of the tracker that has this identity; return the identity."""

    def write(self, points: Sequence[CurvePoint]) -> None: ...

    def close(self, summary: Mapping[str, float], exit_code: int | None) -> None:
        """Write what is known at the end; without an exit code the run may go on."""


def writer(tracker: Tracker, path: str) -> Writer:
    """Return the writer of a tracker for a run directory; its library is not imported yet."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    kinds: dict[str, Callable[[str, str], Writer]] = {"tensorboard": _TensorBoard, "mlflow": _MLflow, "wandb": _WandB}
    return kinds[tracker.name](tracker.where, path)


class _TensorBoard:
    def __init__(self, where: str, path: str) -> None:
        self._where = where or os.path.join(path, "tensorboard")
        self._has_runs = bool(where)
        self._last = 0.0, 0
        self.view = f"tensorboard --logdir {_shown(self._where)}"

    def open(self, run: TrackedRun, identity: str) -> str:
        folder = identity or (os.path.join(self._where, run.name) if self._has_runs else self._where)
        self._writer = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(folder)
        self._last = run.began, 0
        if not identity:
            rows = [f"| {name} | {_short(value).replace('|', '/')} |" for name, value in run.configuration.items()]
            summaries = import_module("tensorboard.compat.proto.summary_pb2")
            kind = import_module("tensorboard.compat.proto.types_pb2").DT_STRING
            content = "\n".join(["| name | value |", "|---|---|", *rows]).encode("utf-8", "replace")
            plugin = summaries.SummaryMetadata.PluginData(plugin_name="text")
            tensor = import_module("tensorboard.compat.proto.tensor_pb2").TensorProto(dtype=kind, string_val=[content])
            metadata = summaries.SummaryMetadata(plugin_data=plugin)
            self._add([summaries.Summary.Value(tag="configuration", metadata=metadata, tensor=tensor)])
        return folder

    def _add(self, values: Sequence[Any]) -> None:
        (moment, step), summaries = self._last, import_module("tensorboard.compat.proto.summary_pb2")
        event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._writer.add_event(event(wall_time=moment, step=step, summary=summaries.Summary(value=values)))

    def _add_scalars(self, values: Mapping[str, float]) -> None:
        value = import_module("tensorboard.compat.proto.summary_pb2").Summary.Value
        self._add([value(tag=name, simple_value=number) for name, number in values.items()])

    def write(self, points: Sequence[CurvePoint]) -> None:
        for point in points:
            self._last = point.time, point.step
            self._add_scalars(point.values)
        self._writer.flush()

    def close(self, summary: Mapping[str, float], exit_code: int | None) -> None:
        if exit_code is not None:
            self._add_scalars(summary)
        self._writer.close()


class _MLflow:
    def __init__(self, where: str, path: str) -> None:
        where = where or os.path.join(path, "mlflow")
        self._uri = where if re.match(r"[a-z+]+:", where) else f"file://{where}"
        self._last = 0.0, 0
        allowed = "MLFLOW_ALLOW_FILE_STORE=true " if self._uri.startswith("file:") else ""
        self.view = f"{allowed}mlflow ui --backend-store-uri {shlex.quote(self._uri)}"

    def open(self, run: TrackedRun, identity: str) -> str:
        self._client, self._id = import_module("mlflow").MlflowClient(tracking_uri=self._uri), identity
        if identity:
            self._client.update_run(identity, status="RUNNING")
            return identity
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or run.label
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else self._client.create_experiment(name)
        begun = self._client.create_run(experiment, run_name=run.name, start_time=int(run.began * 1000))
        self._id, parameter = str(begun.info.run_id), import_module("mlflow.entities").Param
        keys = {re.sub(r"[^\w\-. /]", "_", key): _short(value) for key, value in run.configuration.items()}
        rows = [parameter(key, value) for key, value in keys.items()]
        for first in range(0, len(rows), MOST_PARAMETERS):
            self._client.log_batch(self._id, params=rows[first : first + MOST_PARAMETERS])
        return self._id

    def write(self, points: Sequence[CurvePoint]) -> None:
        metric = import_module("mlflow.entities").Metric
        rows = [
            metric(name, value, int(each.time * 1000), each.step)
            for each in points
            for name, value in each.values.items()
        ]
        for first in range(0, len(rows), MOST_METRICS):
            self._client.log_batch(self._id, metrics=rows[first : first + MOST_METRICS])
        self._last = points[-1].time, points[-1].step

    def close(self, summary: Mapping[str, float], exit_code: int | None) -> None:
        if exit_code is not None:
            self.write([CurvePoint(time=self._last[0], step=self._last[1], values=summary)])
            self._client.set_terminated(self._id, "FAILED" if exit_code else "FINISHED")


class _WandB:
    def __init__(self, where: str, path: str) -> None:
        self._where = where or path
        self.view = f"wandb sync {_shown(os.path.join(self._where, 'wandb'))}/offline-run-*"

    def open(self, run: TrackedRun, identity: str) -> str:
        wandb = import_module("wandb")
        os.makedirs(self._where, exist_ok=True)
        quiet = {"silent": True, "console": "off", "x_disable_stats": True, "disable_git": True, "disable_code": True}
        self._run = wandb.init(
            mode="offline", dir=self._where, project=os.environ.get("WANDB_PROJECT") or run.label, name=run.name,
            id=identity or None, config=dict(run.configuration), settings=wandb.Settings(**quiet),
        )  # fmt: skip
        return str(self._run.id)

    def write(self, points: Sequence[CurvePoint]) -> None:
        for point in points:
            self._run.log({**point.values, "_timestamp": point.time}, step=point.step)

    def close(self, summary: Mapping[str, float], exit_code: int | None) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=exit_code)


def _shown(path: str) -> str:
    """Return a path as a person would type it here."""
    short = os.path.relpath(path)
    return shlex.quote(path if short.startswith("..") else short)


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
