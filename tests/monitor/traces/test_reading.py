"""Reading traces: whole, packed, cut off anywhere, damaged, and files that are none."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.monitor.traces.made import Made

from echelon.errors import UsageError
from echelon.monitor.traces import reading, verdict
from echelon.monitor.traces.reading import TraceFile


def whole() -> Made:
    made = Made()
    for number in range(20):
        made.event("cpu_op", f'aten::mm {{"[{number}]\\n}}, {{ ü', number * 10.0, 9.0)
    return made


def read(path: Path, chunk_bytes: int = 64) -> "tuple[list[Any], TraceFile]":
    trace = TraceFile(str(path), chunk_bytes=chunk_bytes)
    return list(trace), trace


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_whole_trace_has_all_events_and_fields(tmp_path: Path, name: str) -> None:
    """Each event arrives as it was written, and what stands before and behind them too."""
    made = whole()
    events, trace = read(Path(made.write(tmp_path / name)))
    assert (events, trace.damage) == (made.events, "")
    assert trace.fields == {**made.fields, "traceName": "trace.json"}


def test_gz_of_several_members(tmp_path: Path) -> None:
    """Packed pieces one behind the other are one text."""
    data = whole().text().encode()
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(data[:500]) + gzip.compress(data[500:]))
    events, trace = read(path)
    assert (len(events), trace.damage) == (20, "")


@pytest.mark.parametrize("end", ["]", "", "\n,\n", ","])
def test_list_of_events_alone(tmp_path: Path, end: str) -> None:
    """A list without an object around it is a trace; Chrome lets writers leave out the last bracket."""
    made = whole()
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(made.events)[:-1] + end)
    events, trace = read(path)
    assert events == made.events
    assert trace.damage == ("" if end == "]" else "is cut off")


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_trace_has_all_whole_events(tmp_path: Path, data: st.DataObject) -> None:
    """Of a text that ends anywhere, all events that end before are read, and it is said that it is cut off."""
    made = whole()
    text = made.text().encode()
    cut = data.draw(st.integers(text.index(b"traceEvents") + 20, len(text) - 1))
    path = tmp_path / "trace.json"
    path.write_bytes(text[:cut])
    events, trace = read(path, data.draw(st.sampled_from([7, 64, 1 << 20])))
    assert events == made.events[: sum(1 for end in ends(text) if end <= cut)]
    assert trace.damage


def ends(text: bytes) -> "list[int]":
    """Return where each event of a written trace ends."""
    found, decoder = [], json.JSONDecoder()
    decoded = text.decode()
    at = decoded.index("[", decoded.index("traceEvents")) + 1
    while True:
        at = decoded.index("{", at)
        _, at = decoder.raw_decode(decoded, at)
        found.append(len(decoded[:at].encode()))
        if decoded[at:].lstrip()[0] == "]":
            return found


def test_cut_gz_has_what_can_be_unpacked(tmp_path: Path) -> None:
    """A packed trace that is cut off is read up to there."""
    made = Made()
    for number in range(5000):
        made.event("cpu_op", f"aten::op{number * 7919 % 5000}", number * 10.0, number % 9 + 0.125)
    path = tmp_path / "trace.json.gz"
    made.write(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    events, trace = read(path, 1 << 20)
    assert trace.damage == "is cut off"
    assert 1000 < len(events) < 5000
    assert events == made.events[: len(events)]


def test_damaged_event_is_left_out(tmp_path: Path) -> None:
    """Other events are read, and the damage is said."""
    made = whole()
    text = made.text().replace('"dur": 9.0', '"dur": inf', 2).replace("9.0", "nan", 1)
    path = tmp_path / "trace.json"
    path.write_text(text)
    events, trace = read(path, 1 << 20)
    assert len(events) == 17
    assert trace.damage == "has 3 unreadable events"


def test_damaged_gz_is_read_up_to_the_damage(tmp_path: Path) -> None:
    made = Made()
    for number in range(5000):
        made.event("cpu_op", f"aten::op{number * 7919 % 5000}", number * 10.0, number % 9 + 0.125)
    path = tmp_path / "trace.json.gz"
    made.write(path)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)
    judged = verdict.of(str(path))
    assert judged.damage
    assert 0 < judged.num_events < 5000


NO_EVENT = "has no event of torch.profiler"
NO_TRACES = {
    "empty": (b"", "is no trace of a profiler: it is empty"),
    "blank": (b" \n ", "is no trace of a profiler: it is empty"),
    "page": (b"<html>", "is no trace of a profiler: it does not begin as JSON"),
    "binary": (bytes(range(256)), "is no trace of a profiler: it does not begin as JSON"),
    "number": (b"17", "is no trace of a profiler: it does not begin as JSON"),
    "other object": (b'{"a": 1}', NO_EVENT),
    "no events": (b'{"traceEvents": []}', NO_EVENT),
    "events of others": (b'[{"ph": "X", "cat": "v8", "name": "a", "ts": 1, "dur": 2}]', NO_EVENT),
    "no times": (b'[{"ph": "X", "cat": "cpu_op", "name": "a", "ts": "1"}]', NO_EVENT),
    "cut before events": (b'{"schemaVersion": 1, "dev', NO_EVENT + "; it is cut off"),
    "broken": (b'{"a": tru}', NO_EVENT + "; it is cut off"),
    "deep": (b'{"a": ' + b"[" * 100_000, "is no trace of a profiler"),
    "packed rubbish": (b"\x1f\x8b" + bytes(100), "is no trace of a profiler"),
    "packed nothing": (gzip.compress(b""), "is no trace of a profiler: it is empty"),
    "no length": (b'[{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 0}]', "has only events without a dur"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_TRACES)
def test_what_is_no_trace_is_refused(tmp_path: Path, name: str) -> None:
    """One error names the file and what it lacks."""
    data, why = NO_TRACES[name]
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        verdict.of(str(path))
    assert caught.value.message.startswith(f"{path} {why}")
    assert "echelon profile" in caught.value.hint


@pytest.mark.parametrize(("name", "why"), [("missing", "No such file or directory"), (".", "Is a directory")])
def test_what_cannot_be_opened_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        verdict.of(str(tmp_path / name))


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """What is no file is refused, and not read for ever."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe"):
        verdict.of(str(tmp_path / "pipe"))


MEASURE = """
import resource, sys
from echelon.monitor.traces import verdict
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
judged = verdict.of(sys.argv[1])
print(before * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, judged.num_events, judged.bound)
"""


def large(path: Path, num_bytes: int) -> int:
    """Write a trace of a training on a GPU, with shapes, as large as asked; return the number of events that count."""
    made, number = Made(), 0
    for index in range(200):
        ts = index * 25.0
        made.launch([("cpu_op", "aten::linear"), ("cpu_op", "aten::addmm")], ts, "gemm", ts + 20, 20)
    for event in made.events:
        if event.get("cat") == "cpu_op":
            event["args"].update({"Input Dims": [[512, 1024], [4096, 1024]], "Input type": ["float", "float"]})
    texts = [json.dumps(event, indent=1) for event in made.events]
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [')
        while file.tell() < num_bytes:
            for event, text in zip(made.events, texts, strict=True):
                file.write(text.replace(f'"ts": {event["ts"]}', f'"ts": {event["ts"] + number * 5000}') + ",\n")
            number += 1
        file.write(texts[0] + "]}")
    return number * sum(1 for event in made.events if event["ph"] == "X") + 1


def measured(path: Path) -> "tuple[int, int, int, str]":
    """Return the most memory before and after judging a trace, in bytes, the number of events, and the verdict."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
    before, after, events, bound = done.stdout.split()
    return int(before), int(after), int(events), bound


def test_memory_is_a_part_of_the_file(tmp_path: Path) -> None:
    """A trace takes less than half of its size in memory, beside what Python itself takes."""
    path = tmp_path / "trace.json"
    num_events = large(path, 24_000_000)
    before, after, events, bound = measured(path)
    assert (events, bound) == (num_events, "compute")
    assert after - before < path.stat().st_size / 2


@pytest.mark.tier("soak")
@pytest.mark.timeout(1200)
def test_gigabyte_in_500_megabytes(tmp_path: Path) -> None:
    """A trace of 1 GB is judged in less than 500 MB of memory, Python included."""
    path = tmp_path / "trace.json"
    num_events = large(path, 1_000_000_000)
    _, after, events, bound = measured(path)
    path.unlink()
    assert (events, bound) == (num_events, "compute")
    assert after < 500_000_000


def test_longest_event_is_longer_than_a_chunk() -> None:
    assert reading.LONGEST_EVENT > 2 * reading.CHUNK_BYTES
