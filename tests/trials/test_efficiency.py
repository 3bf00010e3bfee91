"""The arithmetic of a scaling benchmark: generated folders whose truth is known."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.trials.generated import PHASES, QUESTION, Folder

from echelon.errors import UsageError
from echelon.monitor.page import plots
from echelon.trials import efficiency, measured, plot, records, scaling_report
from echelon.trials.question import WEAK, Question, Size, parse, place, usual

step_seconds = st.floats(0.001, 5.0)


@settings(max_examples=60, deadline=None)
@given(
    fixed=st.floats(0.0, 1.0), shared=st.floats(0.01, 2.0), warm=step_seconds, mode=st.sampled_from(["strong", "weak"]),
    base=st.sampled_from([1, 2, 3]),
)  # fmt: skip
def test_speedup_and_efficiency_of_generated_runs(
    tmp_path_factory: pytest.TempPathFactory, fixed: float, shared: float, warm: float, mode: str, base: int
) -> None:
    """A step takes `fixed + shared / n` (strong) or `fixed * log2(n) + shared` (weak); the warm-up does not count."""
    folder = Folder(tmp_path_factory.mktemp("bench"), replace(QUESTION, mode=mode))
    numbers = [base, 2 * base, 4 * base]
    truth = {}
    for power, number in enumerate(numbers):
        truth[number] = fixed + shared / number if mode == "strong" else fixed * power + shared
        folder.run(number, [warm] * 39 + [truth[number]] * 60)
    rows = folder.rows()
    for row in rows:
        work = 1.0 if mode == "strong" else row.num_ranks / base
        speedup = work * truth[base] / truth[row.num_ranks]
        assert row.speedup is not None and row.efficiency is not None and row.steps_per_second is not None
        assert row.steps_per_second.value == pytest.approx(1 / truth[row.num_ranks], rel=1e-5)
        assert row.speedup.value == pytest.approx(speedup, rel=1e-5)
        assert row.efficiency.value == pytest.approx(speedup * base / row.num_ranks, rel=1e-5)
        assert row.efficiency.least <= row.efficiency.value <= row.efficiency.most
    enough = [row for row in rows if row.efficiency is not None and row.efficiency.value >= 0.75 and not row.doubt]
    kept = efficiency.largest_enough(rows)
    assert kept is not None and kept.num_ranks == enough[-1].num_ranks
    found, ours = efficiency.amdahl(folder.question, rows)
    if mode == "strong":
        assert found == pytest.approx(fixed, rel=1e-3, abs=1e-5)
        assert ours == pytest.approx(shared / base, rel=1e-3, abs=1e-5)
    else:
        assert found == pytest.approx(2 * fixed, rel=1e-3, abs=1e-5)


@given(st.lists(step_seconds, min_size=5, max_size=300), st.integers(0, 300))
def test_warm_up_leaves_enough_steps(seconds: list[float], warm_up: int) -> None:
    """The steps that count are the last ones, at least 60 % of all, and with many steps all but the warm-up."""
    kept = measured.steady(tuple(seconds), warm_up)
    assert tuple(seconds[len(seconds) - len(kept) :]) == kept
    assert len(kept) >= 0.6 * len(seconds)
    assert warm_up > 0.4 * (len(seconds) + 1) or len(kept) == len(seconds) + min(1, warm_up) - warm_up


@given(
    st.lists(st.lists(step_seconds, min_size=9, max_size=9), min_size=1, max_size=4),
    st.lists(st.lists(step_seconds, min_size=9, max_size=9), min_size=1, max_size=4),
)
@example(ones=[[1.0] * 9, [1.0] * 8 + [2.0]], twos=[[1.0] * 9, [1.0] * 8 + [2.0]])
def test_range_has_the_extremes_of_both_sizes(ones: list[list[float]], twos: list[list[float]]) -> None:
    """The least efficiency is that of the slowest run on two ranks and the fastest on one."""
    question = replace(QUESTION, warm_up=0, num_repeats=len(ones))
    runs = [run(1, seconds) for seconds in ones] + [run(2, seconds) for seconds in twos]
    rows = efficiency.rows(question, runs)
    assert rows[1].efficiency is not None and rows[0].efficiency is not None
    assert rows[0].efficiency == efficiency.Interval(value=1.0, least=1.0, most=1.0)
    if len(ones) > 1 and len(twos) > 1:
        slowest, fastest = min(9 / sum(each) for each in twos), max(9 / sum(each) for each in ones)
        assert rows[1].efficiency.least == pytest.approx(slowest / fastest / 2)
    assert rows[1].efficiency.least <= rows[1].efficiency.value <= rows[1].efficiency.most


def run(num_ranks: int, seconds: list[float], account: Any = None) -> measured.MeasuredRun:
    return measured.MeasuredRun(
        num_ranks=num_ranks, num_nodes=1, num_cores=64, num_devices=0, seconds=tuple(seconds), account=account,
        failure="",
    )  # fmt: skip


def test_single_run_has_the_spread_of_its_parts() -> None:
    """Four parts of the steps of one run show how steady it was."""
    rows = efficiency.rows(replace(QUESTION, warm_up=0), [run(1, [1.0] * 8), run(2, [1.0, 1.0, 0.5, 0.5] * 2)])
    assert rows[1].efficiency == efficiency.Interval(value=pytest.approx(8 / 6 / 2), least=0.5, most=1.0)


def test_failed_size_has_its_reason_and_the_others_their_numbers(tmp_path: Path) -> None:
    """The smallest size that trained is the base; a failed size has no number anywhere."""
    folder = Folder(tmp_path)
    folder.run(1, [0.1] * 99, exit_code=1, cause="error in the script")
    folder.run(2, [0.1] * 99)
    folder.run(4, [0.05] * 99)
    rows = folder.rows()
    assert [row.failure for row in rows] == ["error in the script", "", ""]
    assert rows[2].speedup is not None and rows[2].speedup.value == pytest.approx(2.0)
    text = scaling_report.text(folder.question, rows)
    assert "relative to 2 ranks" in text
    assert "1 rank gave no result: error in the script." in text
    plain = scaling_report.as_plain(folder.question, rows)
    assert plain["sizes"][0]["efficiency"] is None
    assert plain["largest_with_75_percent"] == 4


@pytest.mark.parametrize(("fast", "doubt"), [(0.06, False), (0.046, False), (0.04, True), (0.03, True)])
def test_gain_that_ranks_cannot_explain_is_doubted(tmp_path: Path, fast: float, doubt: bool) -> None:
    folder = Folder(tmp_path)
    folder.run(1, [0.1] * 99)
    folder.run(2, [fast] * 99)
    rows = folder.rows()
    assert bool(rows[1].doubt) == doubt
    assert ("cannot explain" in rows[1].doubt) == (fast == 0.03)
    assert scaling_report.as_plain(folder.question, rows)["largest_with_75_percent"] == (1 if doubt else 2)


def test_phases_utilisation_and_nodes_are_those_of_the_runs(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.run(1, [0.1] * 99, devices=4, load=90.0)
    folder.run(8, [0.02] * 99, num_nodes=2, devices=4, load=60.0)
    rows = folder.rows()
    told = scaling_report.as_plain(folder.question, rows)["sizes"]
    assert told[1]["phases"] == pytest.approx({**PHASES, "steps": 99 * 0.02}, rel=1e-3)
    assert [size["utilisation_percent"] for size in told] == [90.0, 60.0]
    assert [size["nodes"] for size in told] == [1, 2]
    assert "busy 90 % on 1 rank, 60 % on 8 ranks of the time" in scaling_report.paragraph(folder.question, rows)


def test_run_that_its_time_limit_cut_counts(tmp_path: Path) -> None:
    """With --timeout, exit code 124 is the end that was asked for; without, it is a failure."""
    folder = Folder(tmp_path, replace(QUESTION, timeout="30", num_steps=0))
    folder.run(1, [0.1] * 99, exit_code=124, cause="time limit")
    folder.run(2, [0.1] * 9, exit_code=124, cause="time limit")
    folder.run(4, [0.1] * 4, exit_code=124, cause="time limit")
    rows = folder.rows()
    assert [row.failure for row in rows] == ["", "", "5 steps, and a rate needs at least 7"]
    folder.question = replace(folder.question, timeout="")
    assert [row.failure for row in folder.rows()] == ["time limit"] * 3


def with_parts(parts: dict[str, float]) -> object:
    """Return an account that knows the parts of its steps."""
    training = SimpleNamespace(parts=parts, samples_per_second=None)
    return SimpleNamespace(training=training, steps=None, devices=(), phases=(), seconds=1.0)


LIMITS = {
    "communication": ({"backward": 9.0, "communication": 1.0}, {"backward": 4.0, "communication": 4.0, "data": 0.2}),
    "data": ({"backward": 9.0, "data": 0.5}, {"backward": 4.0, "data": 3.0, "communication": 1.0}),
    "fixed part": ({}, {}),
}


@pytest.mark.parametrize("kind", LIMITS)
def test_limit_is_the_part_that_grows(kind: str) -> None:
    """The share of communication, or of waiting for data, grows with the ranks; without parts, what does not shrink."""
    one, four = (with_parts(parts) for parts in LIMITS[kind])
    rows = efficiency.rows(QUESTION, [run(1, [0.1] * 9, account=one), run(4, [0.06] * 9, account=four)])
    limit = efficiency.find(QUESTION, rows)
    assert limit.kind == kind
    assert (limit.next_ranks, limit.next_efficiency) == (8, pytest.approx(0.1 / (0.14 / 3 + 0.16 / 3 / 8) / 8))
    if kind != "fixed part":
        assert f"{rows[1].parts[kind]:.0%} of a step on 4 ranks" in limit.text


@pytest.mark.parametrize(
    ("changes", "question"),
    [
        ({}, "would --compress bf16 or --sync-every 100 or more samples a step make it shorter?"),
        ({"options": ("--bucket-mb", "4")}, "would --compress bf16 or more samples a step make it shorter?"),
        ({"options": ("--scale", "fsdp")}, "would more samples a step make it shorter?"),
        ({"options": ("--scale", "own.py:Mine")}, "would more samples a step make it shorter?"),
        ({"is_own": True}, "would more samples a step make it shorter?"),
    ],
)
def test_limit_names_only_options_that_the_runs_would_accept(changes: dict[str, Any], question: str) -> None:
    one, four = (with_parts(parts) for parts in LIMITS["communication"])
    asked = replace(QUESTION, **changes)
    rows = efficiency.rows(asked, [run(1, [0.1] * 9, account=one), run(4, [0.06] * 9, account=four)])
    limit = efficiency.find(asked, rows)
    assert limit.text.endswith(question)
    assert f"{question} Amdahl's law expects" in efficiency.sentence(limit)


def test_limit_of_cores_of_devices_of_the_start_and_of_nothing() -> None:
    def kind(question: Question = QUESTION, **fields: object) -> str:
        runs = [run(1, [0.1] * 9), replace(run(4, [0.05] * 9), **fields)]  # type: ignore[arg-type]
        return efficiency.find(question, efficiency.rows(question, runs)).kind

    assert kind(num_cores=2) == kind(num_cores=4, seconds=(0.03,) * 9) == "cores"
    assert kind(num_cores=4) == "fixed part"
    assert kind(num_devices=2) == "devices"
    assert kind(num_devices=4, num_cores=2) == "fixed part"
    assert kind(seconds=(0.026,) * 9) == "nothing"
    assert kind(replace(QUESTION, mode=WEAK), seconds=(0.2,) * 9) == "slower steps"


def test_long_start_limits_a_run_that_was_not_cut(tmp_path: Path) -> None:
    """A run with all of its steps that was busy with its start for more than half of the time."""
    folder = Folder(tmp_path, replace(QUESTION, num_steps=0))
    folder.run(1, [0.05] * 99)
    folder.run(4, [0.04] * 99)
    assert efficiency.find(folder.question, folder.rows()).kind == "start"
    folder.question = replace(folder.question, num_steps=100)
    assert efficiency.find(folder.question, folder.rows()).kind == "fixed part"


@given(st.integers(1, 64), st.integers(0, 8), st.integers(1, 512))
def test_place_fills_nodes(num_nodes: int, per_node: int, number: int) -> None:
    """Each size gets the fewest nodes that share its ranks equally, or an error with the choices."""
    plan = {"nodes": [""] * num_nodes, "devices_per_node": per_node}
    try:
        (size,) = place(plan, (number,), shares_devices=False)
    except UsageError as error:
        assert per_node and (number > num_nodes * per_node or number % -(-number // per_node))
        assert error.hint
        return
    assert size.num_ranks == number and size.num_ranks % size.num_nodes == 0 and size.num_nodes <= num_nodes
    assert not per_node or size.num_nodes == -(-number // per_node)


def test_size_that_does_not_fit_names_the_choices() -> None:
    plan = {"nodes": ["a", "b"], "devices_per_node": 4}
    with pytest.raises(UsageError, match=r"--ranks 16: there are 8 devices here, 4 on 2 nodes; the choices are 1 to 8"):
        place(plan, (1, 4, 16), shares_devices=False)
    assert place(plan, (16,), shares_devices=True) == (Size(num_ranks=16, num_nodes=2),)
    with pytest.raises(UsageError, match="2 nodes with 4 devices each cannot share 5 ranks equally") as raised:
        place(plan, (5,), shares_devices=False)
    assert raised.value.hint == "use 4 or 8 ranks in place of 5"
    assert usual(plan) == (1, 2, 4, 8)


@pytest.mark.parametrize("text", ["", "0,1", "1", "2,2", "1,x", "1,-2", "1,²", "9999999,1", "1;2"])
def test_wrong_ranks(text: str) -> None:
    with pytest.raises(UsageError, match="--ranks"):
        parse(text)


FOREIGN = {
    "newer": {"format": 2}, "question": {"question": {"script": "x"}}, "runs": {"runs": [{"num_ranks": 1}]},
    "no list": {"runs": 3},
    "outside": {"runs": [{"num_ranks": 1, "repeat": 1, "folder": "..", "run": "../x", "job": "", "failure": ""}]},
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_folder(tmp_path: Path, name: str) -> None:
    folder = Folder(tmp_path)
    folder.run(1, [0.1] * 99)
    folder.write()
    folder.edit(**FOREIGN[name])
    with pytest.raises(UsageError, match=r"bench\.json") as raised:
        records.read(str(tmp_path))
    assert raised.value.hint


def test_foreign_seconds_are_a_failure_and_a_cut_line_is_none(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.run(1, [0.1] * 99)
    folder.run(2, [0.1] * 99)
    folder.run(4, [0.1] * 99)
    with (tmp_path / "1-ranks-1" / "seconds.txt").open("a") as file:
        file.write("0.1")
    (tmp_path / "2-ranks-1" / "seconds.txt").write_text("nan\n" * 99)
    (tmp_path / "4-ranks-1" / "seconds.txt").write_text("x\n")
    rows = folder.rows()
    assert len(rows[0].runs[0].seconds) == 60
    assert "not more than 0" in rows[1].failure
    assert "no number of seconds" in rows[2].failure


def test_picture_has_both_lines_in_two_files(tmp_path: Path) -> None:
    """The SVG has the words, and is the same when it is drawn again; the PNG is one."""
    folder = Folder(tmp_path / "bench")
    folder.run(1, [0.1] * 99)
    folder.run(2, [0.06, 0.07] * 50)
    files = plots.paths(str(tmp_path / "scaling.png"), usual="scaling")
    assert [os.path.basename(file) for file in files] == ["scaling.svg", "scaling.png"]
    plot.draw(folder.question, folder.rows(), files)
    first = Path(files[0]).read_text()
    assert all(f">{word}</text>" in first for word in ("ideal", "measured", "ranks", "speedup"))
    assert Path(files[1]).read_bytes().startswith(b"\x89PNG")
    plot.draw(folder.question, folder.rows(), files)
    assert Path(files[0]).read_text() == first


@pytest.mark.parametrize("name", ["", "/", "missing/folder/name"])
def test_picture_that_cannot_be_drawn(name: str) -> None:
    with pytest.raises(UsageError, match="--plot"):
        plots.paths(name, usual="scaling")
