"""A generated run of many nodes, written as the supervisor writes it."""

import json
from pathlib import Path
from typing import Any

BEGAN = 1_800_000_000.0


def write(
    folder: Path, *, num_nodes: int, ranks_per_node: int, samples: int = 10, slow: int = -1, lost: int = -1
) -> Path:
    """Write a run in which one rank may be slow, and one node lost; return its directory."""
    folder.mkdir(parents=True)
    number = num_nodes * ranks_per_node
    nodes = [f"nid{5000 + node:06}" for node in range(num_nodes)]
    events: list[dict[str, Any]] = [
        {"time": BEGAN, "event": "agent", "agent_index": index, "node": node, "devices": ranks_per_node}
        for index, node in enumerate(nodes)
    ]
    events.append({"time": BEGAN + 1, "event": "attempt", "number": 0, "ranks": number})
    events += [
        {"time": BEGAN + 2, "event": "started", "rank": rank, "node": nodes[rank // ranks_per_node], "pid": 1}
        for rank in range(number)
    ]
    if lost >= 0:
        events.append({"time": BEGAN + 50, "event": "agent lost", "node": nodes[lost], "why": "the connection ended"})
    rows = [_sample(turn, number, slow) for turn in range(1, samples + 1)]
    load = [{"device": device, "looks": 9, "mean": 90.0, "most": 99, "now": 85} for device in range(ranks_per_node)]
    rows[-1]["load"] = dict.fromkeys(nodes, load)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [{"format": 1}, *rows]))
    (folder / "plan.json").write_text(json.dumps({"format": 1, "job_id": "4711"}))
    return folder


def _sample(turn: int, number: int, slow: int) -> dict[str, Any]:
    """A sample every six seconds: 60 steps of 0.1 s, of which 30 % is data and 20 % waiting for others."""
    seconds = 6.0 * turn
    waits = [0.05 * seconds if rank == slow else 0.2 * seconds for rank in range(number)]
    measures = {
        "step_seconds": seconds,
        "data_seconds": 0.3 * seconds,
        "communication_seconds": waits,
        "samples": 480 * turn,
        "loss": 1 / turn,
    }
    line = {"time": BEGAN + 2 + seconds, "attempt": 0, "ranks": number, "steps": 60 * turn, "loss": 1 / turn}
    return {**line, "samples": 60 * turn * number * 8, "measures": measures}
