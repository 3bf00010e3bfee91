"""What a run says about its devices: idle, throttled, almost full; each once, with evidence."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from echelon.cli.preflight import observer
from echelon.launch.lookouts import Lookouts
from echelon.launch.run_directory import RunDirectory
from echelon.launch.samples import Samples
from echelon.monitor.device_facts import facts

GIB = 1 << 30
EXCLUDE = "; leave the node out and tell the support: --exclude="
REMEDY = "; ask for fewer devices, or start a rank for each device"
ROOM = "; larger inputs may not fit; a smaller batch, or sharded weights, leave room"


def row(number: int = 0, **more: Any) -> dict[str, Any]:
    """Return the row of a device that works well."""
    fields = {
        "looks": 60, "mean": 90.0, "most": 100, "memory_used_most_bytes": 40 * GIB, "memory_bytes": 80 * GIB,
        "clock_most_mhz": 1980, "throttled": [],
    }  # fmt: skip
    return {"device": number, **fields, **more}


def hot(number: int = 0, percent: float = 42.0, reason: str = "thermal", clock: int = 1005, **more: Any) -> Any:
    return row(number, throttled_percent={reason: percent}, throttled_clock_mhz=clock, **more)


def lines(**nodes: list[dict[str, Any]]) -> list[str]:
    return [seen.line for seen in facts(nodes)]


def test_a_throttled_device_is_named_with_its_reason_and_clock() -> None:
    assert lines(nid1=[row(), hot(3)], nid2=[row()]) == [
        "1 of 3 devices was throttled for a large part of the time: 3 on nid1: thermal for 42% of the time, "
        f"at 1005 of 1980 MHz{EXCLUDE}nid1"
    ]
    worst = hot(1, 80.0, "hardware", clock=495)
    assert lines(nid1=[hot(0), worst], nid2=[hot(0), hot(1)]) == [
        "4 of 4 devices were throttled for a large part of the time: 0-1 on nid[1-2]; most of all 1 on nid1: hardware "
        f"for 80% of the time, at 495 of 1980 MHz{EXCLUDE}nid[1-2]"
    ]


@pytest.mark.parametrize(
    "device",
    [
        row(),
        hot(percent=19.9),
        hot(looks=5),
        hot(percent=99.0, reason="power cap", clock=1500),  # what hard work costs
        hot(percent=99.0, reason="power cap", clock=1500, clock_most_mhz=None),
        {"device": 0, "throttled_percent": {"thermal": 50.0}},  # a part of a card
    ],
)
def test_a_device_that_works_as_it_should_is_not_named(device: dict[str, Any]) -> None:
    assert lines(nid1=[device]) == []


def test_power_cap_counts_if_it_costs_much() -> None:
    [line] = lines(nid1=[hot(percent=99.0, reason="power cap", clock=1400)])
    assert "power cap for 99% of the time, at 1400 of 1980 MHz" in line


def test_memory_that_was_almost_full() -> None:
    """Its most counts, and also a part of a card, whose load nobody knows."""
    full = row(2, memory_used_most_bytes=int(79.2 * GIB))
    assert lines(nid1=[row(), full]) == [
        f"1 of 2 devices used more than 95% of the memory: 2 on nid1 (up to 79.2 GiB of 80 GiB){ROOM}"
    ]
    assert lines(nid1=[row(memory_used_most_bytes=75 * GIB)], nid2=[row(memory_bytes=0)]) == []
    part = {"device": 0, "memory_used_most_bytes": 10 * GIB, "memory_bytes": 10 * GIB}
    assert len(lines(nid1=[part])) == 1


def busy(*most: int, looks: int = 7) -> list[dict[str, Any]]:
    return [{"device": number, "looks": looks, "mean": each / 2, "most": each} for number, each in enumerate(most)]


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        ([busy(0, 90, 0, 0), busy(0, 80, 0, 0)], [f"echelon never saw 6 of 8 devices busy: 0,2-3 on nid[1-2]{REMEDY}"]),
        ([busy(1, 100), busy(90, 0)], [f"echelon never saw 1 of 4 devices busy: 1 on nid2{REMEDY}"]),
        ([busy(0, 0, looks=3)], []),  # it may still be importing
        ([], []),
    ],
)
def test_devices_that_nobody_used(nodes: list[Any], wanted: list[str]) -> None:
    """Devices without a moment of load are named, nodes with the same ones together."""
    assert lines(**{f"nid{number}": rows for number, rows in enumerate(nodes, 1)}) == wanted


class Heard:
    """The lookouts and samples of a run of one node, which a supervisor has connected."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.said: list[str] = []
        directory = RunDirectory(str(folder), (folder / "events.jsonl").open("wb", buffering=0))
        self.lookouts = Lookouts(None, directory, 1, self.said.append)
        self.samples = Samples(directory, lambda: self.now)
        self.samples.load, self.samples.host = self.lookouts.load, self.lookouts.host
        self.samples.say, self.samples.observer = self.said.append, observer(lambda: False)

    def hear(self, after: float, *rows: dict[str, Any], host: "dict[str, Any] | None" = None) -> None:
        self.now += after
        member: Any = SimpleNamespace(
            placement=SimpleNamespace(node="nid1"), clock_offset=0.0, share=SimpleNamespace(ranks=(0,))
        )
        self.lookouts.hear(member, {"kind": "load", "devices": list(rows), "host": host or {}})
        self.samples.hear(member, {"kind": "pulse", "attempt": 0, "steps": [5], "measures": {}})


def test_each_fact_is_said_once_and_is_an_event(tmp_path: Path) -> None:
    """While the run goes on, one a minute, an idle device only after two minutes of steps; the rest at its end."""
    run = Heard(tmp_path)
    part = {"device": 2, "memory_used_most_bytes": 10 * GIB, "memory_bytes": 10 * GIB}  # its load is not told
    for _ in range(3):
        run.hear(2.0, row(0, most=0), hot(1), host={"devices": [part]})
    assert [line.split(" devices ")[0] for line in run.said] == ["note: 1 of 3"]
    run.hear(61.0, row(0, most=0), hot(1), host={"devices": [part]})
    assert "1 of 3 devices used more than 95% of the memory: 2 on nid1" in run.said[1]
    run.hear(10.0, row(0, most=0), hot(1), host={"devices": [part]})
    assert len(run.said) == 2
    run.samples.close()
    assert run.said[2:] == [f"note: echelon never saw 1 of 3 devices busy: 0 on nid1{REMEDY}"]
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["fact"] for event in events] == ["throttled devices", "memory almost full", "idle devices"]
    assert all(
        (event["nodes"], f"note: {event['line']}") == (["nid1"], said)
        for event, said in zip(events, run.said, strict=True)
    )
    assert all(event["evidence"] and event["remedy"] in event["line"] for event in events)


def test_idle_device_is_named_while_others_train(tmp_path: Path) -> None:
    run = Heard(tmp_path)
    for _ in range(70):
        run.hear(2.0, row(0), row(1, most=0))
    assert run.said == [f"note: echelon never saw 1 of 2 devices busy: 1 on nid1{REMEDY}"]
