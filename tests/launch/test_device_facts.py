"""What is said at the end of a run about its devices: throttled, almost full; once, with evidence."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from echelon.launch.crew import Member
from echelon.launch.device_facts import facts
from echelon.launch.lookouts import Lookouts
from echelon.launch.run_directory import RunDirectory

GIB = 1 << 30
EXCLUDE = "; leave the node out and tell the support: --exclude="
ROOM = "; larger inputs may not fit; a smaller batch or --scale fsdp leaves room"


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


def test_each_fact_is_a_line_and_an_event() -> None:
    """All come once, when the run is over; devices whose load is not told are among them."""
    said: list[str] = []
    events: list[tuple[str, dict[str, Any]]] = []
    directory = cast(RunDirectory, SimpleNamespace(event=lambda kind, **fields: events.append((kind, fields))))
    lookouts = Lookouts(None, directory, 1, said.append)
    member = cast(Member, SimpleNamespace(placement=SimpleNamespace(node="nid1"), clock_offset=0.0))
    part = {"device": 2, "memory_used_most_bytes": 10 * GIB, "memory_bytes": 10 * GIB}
    host = {"seconds": 700.0, "cpu_percent": 9.5, "devices": [part]}
    for _ in range(2):
        lookouts.hear(member, {"kind": "load", "devices": [row(0, most=0), hot(1)], "host": host})
    lookouts.hear(member, {"kind": "load", "devices": [], "host": host})
    assert said == []
    assert (lookouts.host, [each["device"] for each in lookouts.load["nid1"]]) == ({"nid1": host}, [0, 1])
    lookouts.close()
    assert [line.split(" devices ")[0] for line in said] == ["note: echelon never saw 1 of 3", *["note: 1 of 3"] * 2]
    assert [kind for kind, _ in events] == ["finding"] * 3
    for line, (_, fields) in zip(said, events, strict=True):
        assert line == f"note: {fields['message']}; {fields['remedy']}"
        assert (fields["severity"], fields["nodes"], fields["check"]) == ("note", ["nid1"], "devices")
        assert fields["evidence"]
