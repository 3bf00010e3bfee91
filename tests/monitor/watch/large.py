"""Write a run directory of many nodes, as a supervisor would: python -m tests.monitor.watch.large FOLDER."""

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

SLOW, LOST, FAILED = 17, 5, 42
"""The rank that makes the others wait, the node that is lost, and the rank that fails."""


def write(
    folder: Path, num_nodes: int = 128, per_node: int = 8, num_samples: int = 240, began: "float | None" = None
) -> None:
    """Write events and samples of a run that goes on: one rank is slow, one has failed, and one node is lost."""
    began = time.time() - num_samples * 5 if began is None else began
    nodes = [f"nid{number:06}" for number in range(1001, 1001 + num_nodes)]
    num_ranks = num_nodes * per_node
    events: list[dict[str, Any]] = [{"event": "supervisor", "pid": 1, "node": nodes[0]}]
    events += [{"event": "agent", "agent_index": n, "node": name, "devices": per_node} for n, name in enumerate(nodes)]
    events.append({"event": "attempt", "number": 0, "ranks": num_ranks, "master": nodes[0]})
    ranks = [
        {"event": "started", "node": nodes[n // per_node], "attempt": 0, "rank": n, "pid": n} for n in range(num_ranks)
    ]
    events += ranks
    last = [
        {"event": "fact", "fact": "straggler", "line": f"rank {SLOW % num_ranks} takes 30 % longer than the others"},
        {"event": "exit", "node": nodes[FAILED % num_ranks // per_node], "rank": FAILED % num_ranks, "status": 1},
        {"event": "agent lost", "node": nodes[LOST % num_nodes], "agent_index": LOST % num_nodes, "why": "no answer"},
    ]
    end = began + num_samples * 5
    timed = [{"time": began, **event} for event in events] + [{"time": end - 10, **event} for event in last]
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"format": 1, "num_nodes": num_nodes, "ranks_per_node": per_node}))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in timed))
    samples = [{"format": 1}, *_samples(began, nodes, per_node, num_samples)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))


def _samples(began: float, nodes: "list[str]", per_node: int, number: int) -> "list[dict[str, Any]]":
    chance, num_ranks, steps, samples = random.Random(0), len(nodes) * per_node, 0, []
    busy = [[round(chance.uniform(70, 99), 1) for _ in range(per_node)] for _ in nodes]
    waits = [chance.uniform(0.06, 0.1) for _ in range(num_ranks)]
    waits[SLOW % num_ranks] = -0.09
    for place in range(1, number + 1):
        steps, passed = steps + chance.randint(9, 11), place * 5.0
        sample = {"time": round(began + passed, 1), "attempt": 0, "ranks": num_ranks, "steps": steps}
        sample["loss"] = round(0.4 + 2.5 / (1 + place / 20) + chance.gauss(0, 0.02), 6)
        sample["samples"] = steps * num_ranks * 32
        if place % 4 == 0:
            sample["measures"] = _measures(passed, sample["loss"], waits, chance)
        if place % 2 == 0:
            sample["load"] = {name: [_load(n, busy[m][n]) for n in range(per_node)] for m, name in enumerate(nodes)}
        samples.append(sample)
    return samples


def _measures(passed: float, loss: float, waits: "list[float]", chance: random.Random) -> "dict[str, Any]":
    """Return what ranks that wait for each other, each for its own share beyond a tenth, have measured until now."""
    return {
        "step_seconds": round(passed, 3),
        "data_seconds": round(passed * 0.04, 3),
        "backward_seconds": round(passed * 0.5, 3),
        "communication_seconds": [round(passed * (0.1 + wait), 3) for wait in waits],
        "optimizer_seconds": round(passed * 0.05, 3),
        "loss": [round(loss + chance.gauss(0, 0.05), 6) for _ in waits],
        "peak_reserved_bytes": [int(chance.uniform(50, 60) * (1 << 30)) for _ in waits],
    }


def _load(device: int, busy: float) -> "dict[str, Any]":
    return {
        "device": device, "looks": 20, "mean": busy, "most": 100, "now": busy, "memory_used_bytes": 50 << 30,
        "memory_bytes": 64 << 30, "power_watts": 480.0, "temperature_celsius": 61.0, "clock_mhz": 1600.0,
        "throttled": "",
    }  # fmt: skip


if __name__ == "__main__":
    write(Path(sys.argv[1]))
