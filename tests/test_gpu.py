"""`make gpu` on a machine without a GPU: it says what is missing, and its program and page are right."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.gpu import __main__ as program
from benchmarks.gpu import page, peaks, row, rows, rows_survive
from benchmarks.gpu.bench import Bench, Done
from benchmarks.gpu.facts import Facts

from echelon.orders import rehearsal

ROOT = Path(__file__).parents[1]
HERE = Facts(python="3.12.1", torch="2.9.0", build="CUDA 12.8", nccl="2.27", devices=("H100",), missing=("lightning",))


def losses(*values: float, median: str = "") -> Done:
    steps = "".join(f"step {step} loss {value}\n" for step, value in enumerate(values))
    return Done(0, steps + median, "")


class Prepared(Bench):
    """A bench whose programs have said already what they say."""

    def __init__(self, by_python: Done, by_echelon: Done, *, num_devices: int = 1) -> None:
        super().__init__(python="python", folder=Path(), device="cuda", num_devices=num_devices)
        self.by_python, self.by_echelon = by_python, by_echelon
        self.commands: list[tuple[str, ...]] = []
        self.killed = by_echelon
        """What a run with a fault said."""

    def alone(self, *_arguments: str) -> Done:
        return self.by_python

    def run(self, options: tuple[str, ...], script: Path, *arguments: str, more: Mapping[str, str] = {}) -> Done:
        self.commands.append((*options, script.name, more.get("CUDA_VISIBLE_DEVICES", "")))
        if rehearsal.VARIABLE in more:
            return self.killed
        return self.by_echelon


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd"), reason="there is a GPU")
def test_without_a_gpu() -> None:
    """It says which device is missing, writes nothing, and ends with exit code 2."""
    before = (ROOT / "docs" / "gpu.md").read_text()
    words = ["make", "--no-print-directory", "gpu", f"PYTHON={sys.executable}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "gpu: error: no NVIDIA or AMD GPU" in done.stderr
    assert (ROOT / "docs" / "gpu.md").read_text() == before


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"torch": ""}, "torch is missing"),
        ({"build": "the CPU"}, "is a build for the CPU"),
        ({"devices": ()}, "no NVIDIA or AMD GPU is here that torch 2.9.0 (CUDA 12.8) can use"),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, object], why: str) -> None:
    """A Python without torch, a build for the CPU and a machine without a GPU are three things."""
    fields = {name: getattr(HERE, name) for name in Facts.__dataclass_fields__} | changes
    assert (why in Facts(**fields).why_not()) if why else not Facts(**fields).why_not()


def test_page_of_this_repository() -> None:
    """Until a GPU was there, the page says that nothing has run; afterwards it has versions and date."""
    text = (ROOT / "docs" / "gpu.md").read_text()
    assert text == page.unrun() or "\n\nLast seen on 20" in text


def test_page_of_a_machine() -> None:
    """The page has the date, the versions, what is not installed, and what was seen, row by row."""
    seen = {"one": rows.Seen(how=rows.SHOWN, what="30 losses"), "two": rows.Seen(how=rows.FAILED, what="a | b")}
    text = page.measured(HERE, seen, date="2026-12-01", is_cpu=False)
    assert "Last seen on 2026-12-01 on H100: Python 3.12.1, torch 2.9.0 (CUDA 12.8, NCCL 2.27). " in text
    assert "Not installed: lightning." in text
    assert "| one | one rank trains as Python alone | shown | 30 losses | 2026-12-01, H100 |" in text
    assert "| FAILED | a / b | 2026-12-01, H100 |" in text
    assert text.count("| not run |") == len(rows.ROWS) - 2
    assert "the CPU, which shows nothing about a GPU" in page.measured(HERE, {}, date="", is_cpu=True)


def test_page_keeps_the_rows_that_did_not_run() -> None:
    """Each row says when and where it ran; a row that had no time is not taken for a newer one."""
    first = {"one": rows.Seen(how=rows.SHOWN, what="30 losses"), "two": rows.Seen(how=rows.FAILED, what="crashed")}
    before = page.measured(HERE, first, date="2026-12-01", is_cpu=False)
    second = {"one": rows.Seen(how=row.UNRUN, what="no time"), "two": rows.Seen(how=rows.SHOWN, what="40 losses")}
    text = page.measured(HERE, second, date="2026-12-09", is_cpu=False, before=before)
    assert "| shown | 30 losses | 2026-12-01, H100 |" in text
    assert "| shown | 40 losses | 2026-12-09, H100 |" in text
    assert "crashed" not in text
    assert "| not run | no time |" in page.measured(HERE, {"one": second["one"]}, date="2026-12-09", is_cpu=False)


def test_largest_batch_is_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is found to a sixteenth; a training that fails for another reason than a full device is named."""
    monkeypatch.setattr(peaks, "_run", lambda words: "{}" if int(words.split()[2]) <= 100 else "")
    assert peaks._largest("gpt") == {"training": "gpt", "limit_gib": 16, "fits": 100, "fails": 104}

    def fail(words: str) -> str:
        raise peaks._Failed("no module")

    monkeypatch.setattr(peaks, "_run", fail)
    assert peaks._largest("gpt") is None
    assert peaks._peak("gpt --batch 8") is None
    assert capsys.readouterr().err == "peaks: gpt: no module\npeaks: gpt --batch 8: no module\n"


def test_measured_peaks_are_whole() -> None:
    """Each training of the file has all phases of a step, and none takes less than its weights."""
    head, *lines = map(json.loads, (ROOT / "benchmarks" / "gpu" / "peaks.jsonl").read_text().splitlines())
    assert head == {"device": "NVIDIA H200", "torch": "2.11.0+cu130"}
    trainings = [line["bytes"] for line in lines if "bytes" in line]
    assert (len(trainings), len(lines)) == (40, 43)
    for taken in trainings:
        assert taken["parameters"] <= taken["model"] <= taken["zero_grad"] <= taken["reserved"]
        assert max(taken[f"{phase} peak"] for phase in ("forward", "backward", "step")) <= taken["reserved"]


def test_row_compares_losses() -> None:
    """A row is shown only where the losses are those of Python alone."""
    assert rows.one_rank(Prepared(losses(2, 1), losses(2.00001, 1))).how == rows.SHOWN
    assert rows.one_rank(Prepared(losses(2, 1), losses(2.1, 1))).how == rows.FAILED
    assert rows.one_rank(Prepared(losses(2, 1), losses(2))).how == rows.FAILED
    crashed = rows.one_rank(Prepared(losses(2, 1), Done(1, "", "RuntimeError: CUDA error\n")))
    assert crashed == rows.Seen(how=rows.FAILED, what="exit code 1: RuntimeError: CUDA error")


def test_rows_on_one_gpu() -> None:
    """With one GPU two ranks share it, and what needs two is skipped."""
    said = Done(0, losses(2, 1).out, "echelon: note: several ranks share a device: by gloo\n")
    bench = Prepared(losses(2, 1), said)
    assert rows.two_ranks(bench).how == rows.SKIPPED
    assert rows.two_on_one(bench) == rows.Seen(how=rows.SHOWN, what="2 losses within 0e+00 of Python alone; by gloo")
    assert bench.commands[-1][:3] == ("-n", "2", "--share-devices")
    assert bench.commands[-1][-1] == "0"
    assert rows.two_on_one(Prepared(losses(2, 1), losses(2, 1))).how == rows.FAILED  # no line says it
    rows.split("fsdp")(bench)
    assert "--share-devices" in bench.commands[-1]
    several = Prepared(losses(2, 1), said, num_devices=2)
    assert rows.two_ranks(several).how == rows.SHOWN
    assert "--share-devices" not in several.commands[-1]


def test_rows_of_words() -> None:
    """The first step is shown where it was compared, and a full device where a line explains it."""
    equal = Done(0, "", "echelon: first step: equals that of one device to 1e-07 (1 s)\n")
    assert rows.first_step(Prepared(equal, equal)).how == rows.SHOWN
    unequal = Done(0, "", "echelon: first step: not compared with one device: why\n")
    assert rows.first_step(Prepared(unequal, unequal)).how == rows.FAILED
    full = Done(1, "", "torch.OutOfMemoryError\n  memory: the device is full\n")
    assert rows.out_of_memory(Prepared(full, full)) == rows.Seen(how=rows.SHOWN, what="memory: the device is full")
    assert rows.out_of_memory(Prepared(full, Done(1, "", "Error"))).how == rows.FAILED


def test_program_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program starts real runs and writes their page; on a CPU it says that this shows nothing about a GPU."""
    out = tmp_path / "gpu.md"
    assert program.main(["--cpu", "--out", str(out), "--only", "check"]) == 0
    assert "gpu: check: shown: first step: equals that of one device" in capsys.readouterr().err
    assert "the CPU, which shows nothing about a GPU" in out.read_text()


@pytest.mark.parametrize(("words", "error"), [(["--only", "three"], "there is no such row"), (["--cpu"], "--out FILE")])
def test_wrong_words(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A row that there is not, and a CPU's page in place of docs/gpu.md, are one error each."""
    with pytest.raises(SystemExit) as end:
        program.main(words)
    assert end.value.code == 2
    assert error in capsys.readouterr().err


def steps(*numbers: int, first: float = 3.0) -> str:
    """Return the output of steps, each of which takes a second."""
    ends = [100.0 + number for number in numbers]
    losses = [first - number / 10 for number in numbers]
    return "".join(
        f"step {step} loss {loss:.3f} at {at:.3f}\n" for step, loss, at in zip(numbers, losses, ends, strict=True)
    )


def test_resumed_training() -> None:
    """A row of a resumed training compares both parts with Python alone, and the step at which the second begins."""
    told = "echelon: continues after step 2, from a checkpoint; the steps before it were repeated …\n"
    bench = Prepared(Done(0, steps(0, 1, 2, 3, 4), ""), Done(0, steps(2, 3, 4), told))
    bench.killed = Done(137, steps(0, 1, 2), "")
    seen = rows_survive.resumed()(bench)
    assert (seen.how, "5 losses" in seen.what, "from a checkpoint" in seen.what) == (rows.SHOWN, True, True)
    going = bench.by_echelon
    for wrong in (
        replace(going, out=steps(2, 3, 4, first=3.1)),
        replace(going, out=steps(3, 4)),
        replace(going, err=""),
        replace(going, code=1),
    ):
        bench.by_echelon = wrong
        assert rows_survive.resumed()(bench).how == rows.FAILED
    bench.by_echelon, bench.killed = going, Done(0, steps(0, 1, 2, 3, 4), "")
    assert rows_survive.resumed()(bench).how == rows.FAILED  # nothing was killed


def test_restarted_training() -> None:
    """A row of a restart has the pause, and the steps that were computed again."""
    told = "echelon: continues after step 1, from the memory of the nodes; the steps before it were repeated …\n"
    bench = Prepared(Done(0, steps(0, 1, 2, 3), ""), Done(0, "", ""))
    bench.killed = Done(0, steps(0, 1, 2) + steps(1, 2, 3).replace("at 10", "at 20"), told)
    seen = rows_survive.restarted(bench)
    assert seen.how == rows.SHOWN
    assert "99.0 s to the next step, 2 steps computed again, from the memory of the nodes" in seen.what
    bench.killed = replace(bench.killed, out=steps(0, 1, 2))
    assert rows_survive.restarted(bench).how == rows.FAILED
