"""The state of a run as Prometheus text, version 0.0.4: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

import math
from collections.abc import Iterator

from echelon.monitor.watch.state import DeviceState, RankState, RunState

TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = dict[str, str]
Row = tuple[Labels, "float | None"]
Family = tuple[str, str, str, list[Row]]
"""Name, type, meaning, and the values with their labels; a value that is None is unknown, and has no line."""


def text(state: RunState) -> str:
    """Return all that is known of a run; what is unknown is left out."""
    lines = []
    for name, kind, meaning, rows in (*_of_run(state), *_of_ranks(state), *_of_devices(state)):
        known = [(labels, value) for labels, value in rows if value is not None]
        if known:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {_value(value)}" for labels, value in known]
    return "\n".join([*lines, ""])


def _of_run(state: RunState) -> Iterator[Family]:
    busy = [rank.busy for rank in state.ranks if rank.busy is not None]
    passed = max(0.0, state.now - state.began)
    yield "echelon_run_info", "gauge", "The run and its status.", [({"run": state.name, "status": state.status}, 1)]
    yield "echelon_run_duration_seconds", "gauge", "The time since the run began.", [({}, passed)]
    yield "echelon_attempt", "gauge", "The number of the attempt, from 0.", [({}, state.attempt)]
    yield "echelon_ranks", "gauge", "The ranks of the attempt.", [({}, state.num_ranks)]
    yield "echelon_nodes", "gauge", "The nodes of the run.", [({}, len(state.nodes))]
    yield "echelon_steps_total", "counter", "The steps of the attempt.", [({}, state.steps)]
    yield "echelon_steps_per_second", "gauge", "The pace of the steps.", [({}, state.steps_per_second)]
    yield "echelon_samples_per_second", "gauge", "The samples of all ranks.", [({}, state.samples_per_second)]
    yield "echelon_loss", "gauge", "The mean of the newest losses.", [({}, state.loss)]
    mean = sum(busy) / len(busy) if busy else None
    yield "echelon_busy_ratio", "gauge", "The share of the time without waits and saves, a mean.", [({}, mean)]
    parts: list[Row] = [({"part": part}, share) for part, share in state.shares.items()]
    yield "echelon_step_part_ratio", "gauge", "The share of a part of a step, a mean over the ranks.", parts
    lost: list[Row] = [({"node": node.name}, int(node.is_lost)) for node in state.nodes]
    yield "echelon_node_lost", "gauge", "1 if the node is lost.", lost


def _of_ranks(state: RunState) -> Iterator[Family]:
    ranks = [({"node": rank.node, "rank": str(rank.rank)}, rank) for rank in state.ranks]

    def rows(value: str) -> list[Row]:
        return [(labels, getattr(rank, value)) for labels, rank in ranks]

    states: list[Row] = [({**labels, "status": rank.status}, 1) for labels, rank in ranks]
    yield "echelon_rank_info", "gauge", "The rank, its node and its status.", states
    yield "echelon_rank_steps_total", "counter", "The steps of the rank in the attempt.", rows("steps")
    yield "echelon_rank_busy_ratio", "gauge", "The share of the rank's time without waits and saves.", rows("busy")
    meaning = "The part by which the rank's own time of a step exceeds that of the others."
    yield "echelon_rank_excess_ratio", "gauge", meaning, [(labels, _excess(rank)) for labels, rank in ranks]
    yield "echelon_rank_loss", "gauge", "The newest loss of the rank.", rows("loss")
    yield "echelon_rank_memory_peak_bytes", "gauge", "The most memory that the rank used.", rows("peak_bytes")


def _excess(rank: RankState) -> float | None:
    return rank.excess if rank.shares else None


def _of_devices(state: RunState) -> Iterator[Family]:
    devices = [
        ({"node": node.name, "device": str(device.number)}, device) for node in state.nodes for device in node.devices
    ]

    def rows(value: str, factor: float = 1.0) -> list[Row]:
        return [(labels, _times(getattr(device, value), factor)) for labels, device in devices]

    yield "echelon_device_busy_ratio", "gauge", "How busy the device is.", rows("busy", 0.01)
    yield "echelon_device_memory_used_ratio", "gauge", "The share of its memory that is used.", rows("memory")
    yield "echelon_device_power_watts", "gauge", "The power of the device.", rows("watts")
    yield "echelon_device_temperature_celsius", "gauge", "The temperature of the device.", rows("celsius")
    yield "echelon_device_clock_hertz", "gauge", "The clock of the device.", rows("megahertz", 1e6)
    throttled: list[Row] = [
        ({**labels, "reason": device.throttled}, _is_throttled(device)) for labels, device in devices
    ]
    yield "echelon_device_throttled", "gauge", "1 if the device throttles, with its reason.", throttled


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _is_throttled(device: DeviceState) -> float | None:
    return None if device.busy is None and not device.throttled else int(bool(device.throttled))


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}" if labels else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _value(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(value) if isinstance(value, int) else f"{value:.10g}"
