"""Convert a request to devices and nodes, whichever options it was made with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from echelon.plan.misfit import Change, Misfit, Way, way
from echelon.spec import Request


def counted(request: Request) -> Request:
    """Return the request in devices and nodes; raise Misfit if its numbers contradict each other."""
    per_node = request.devices_per_node
    if not per_node:
        return request
    devices, nodes = request.num_devices, request.num_nodes
    if not devices:
        return replace(request, num_devices=per_node * (nodes or 1), num_nodes=nodes or 1)
    if devices % per_node or (nodes and devices != nodes * per_node):
        raise _contradiction(devices, nodes, per_node)
    return replace(request, num_nodes=devices // per_node)


def _contradiction(devices: int, nodes: int, share: int) -> Misfit:
    ways: list[Way] = []
    if nodes:
        ways.append(way(num_devices=share * nodes))
        if devices % nodes == 0:
            ways.append(way(devices_per_node=devices // nodes))
        product = f"--nodes {nodes} × --gpus-per-node {share} make {nodes * share} GPUs"
        return Misfit(f"{product}, but --gpus asks for {devices}", ways=tuple(ways), num_shown=2)
    below, above = devices - devices % share, devices + share - devices % share
    ways += [way(num_devices=number) for number in (below, above) if number]
    ways += [way(devices_per_node=number) for number in range(min(share, devices), 0, -1) if devices % number == 0][:1]
    return Misfit(f"--gpus {devices} is not a multiple of --gpus-per-node {share}", ways=tuple(ways), num_shown=2)


def changed(request: Request, changes: Sequence[Change]) -> Request:
    """Return the request with the changes; devices that were requested per node stay so."""
    fields = dict(changes)
    if (
        request.devices_per_node
        and ("num_devices" in fields or "num_nodes" in fields)
        and "devices_per_node" not in fields
    ):
        fields = {**fields, **_per_node(request, fields)}
    return replace(request, **fields)  # type: ignore[arg-type]


def _per_node(request: Request, fields: dict[str, int | str]) -> dict[str, int | str]:
    per_node = request.devices_per_node
    devices, nodes = int(fields.get("num_devices", 0)), int(fields.get("num_nodes", 0))
    if not nodes:
        before = request.num_nodes or max(1, request.num_devices // per_node)
        nodes = before if devices % before == 0 else max(1, devices // per_node)
    devices = devices or nodes * per_node
    total: dict[str, int | str] = {"num_devices": devices if request.num_devices else 0}
    if request.num_nodes or nodes > 1:
        total["num_nodes"] = nodes
    return {**total, "devices_per_node": max(1, devices // nodes)}
