"""`fit_scaling.answer`, which `echelon fit --scaling` calls: on generated runs whose law is known, and wrong inputs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.monitor.test_report import Generated, steps

from echelon.cli import fit_scaling
from echelon.errors import UsageError
from echelon.trials import measured_sizes

BATCH = 512


def law(ranks: int) -> float:
    """Return the seconds of a step: a part that the ranks divide, and one that they do not."""
    return 1.6 / ranks + 0.05


def generated(
    folder: Path,
    ranks: int,
    seconds: float,
    *,
    samples: int = BATCH,
    nodes: int = 1,
    devices: int = 8,
    how: str = "data",
) -> str:
    """Write a run of 100 steps whose first 30 took twice as long, and return its path."""
    run = Generated(folder / f"{ranks}-ranks")
    plan = {
        "format": 1,
        "num_nodes": nodes,
        "ranks_per_node": ranks // nodes,
        "scale_options": {"how": how},
        "environ": [],
        "argv": ["/usr/bin/python3", "train.py", "--layers", "2 4"],
        "is_python": True,
    }
    run.write("plan.json", plan)
    run.write("booking.json", {"machine": "lumi"})
    for node in range(nodes):
        run.event("agent", 0.0, agent_index=node, node=f"n{node}", devices=devices)
    run.event("attempt", 1.0, number=0, ranks=ranks)
    run.event("started", 0.0, rank=0)
    began = run.now
    times = [began + seconds * (2 * min(step, 30) + max(0, step - 30)) for step in range(1, 101)]
    rows = [{"time": moment, "attempt": 0, "ranks": ranks, "steps": step + 1} for step, moment in enumerate(times)]
    text = "".join(json.dumps(row) + "\n" for row in [{"format": 1}, *rows, {**rows[-1], "time": times[-1] + 60}])
    (run.folder / "samples.jsonl").write_text(text)
    run.now = times[-1]
    measures = {"samples": samples * 99 / ranks, "step_seconds": times[-1] - times[0]}
    for rank in range(ranks):
        report = steps(run, 100, seconds, times[0])
        run.event("exit", 0.0, rank=rank, status=0, measures=measures, **report)
    run.event("end", 0.0, exit_code=0)
    return str(run.folder)


def benchmark(folder: Path, **changes: Any) -> str:
    """Write what `echelon bench scaling --json` prints, with changes."""
    sizes = [
        {
            "ranks": ranks,
            "nodes": 1,
            "steps_per_second": {"value": 1 / law(ranks), "least": 0.99 / law(ranks), "most": 1.01 / law(ranks)},
            "samples_per_second": BATCH / law(ranks),
        }
        for ranks in (1, 2, 4)
    ]
    failed = {"ranks": 8, "nodes": 1, "steps_per_second": None, "samples_per_second": None}
    fields = {"format": 1, "script": "train.py", "mode": "strong", "sizes": [*sizes, failed], **changes}
    path = folder / "scaling.json"
    path.write_text(json.dumps(fields))
    return str(path)


def test_two_runs_tell_the_law_and_the_batch(tmp_path: Path) -> None:
    """The warm-up does not count, the global batch shows that scaling is strong, and the law goes on."""
    runs = [generated(tmp_path, ranks, law(ranks), nodes=ranks // 8) for ranks in (16, 32)]
    measured = measured_sizes.read(runs)
    assert [run.num_devices for run in measured.runs] == [16, 32]
    assert [run.step_seconds for run in measured.runs] == pytest.approx([law(16), law(32)], rel=1e-6)
    assert [run.global_batch for run in measured.runs] == pytest.approx([BATCH, BATCH], rel=0.01)
    assert [run.spread for run in measured.runs] == pytest.approx([0, 0], abs=1e-3)
    assert (measured.command, measured.machine) == ("python train.py --layers '2 4'", "lumi")
    result = fit_scaling.answer({}, runs).as_data()
    assert result["mode"] == "strong"
    assert [size["num_devices"] for size in result["estimated"]] == [64, 128, 256, 512]
    for size in result["estimated"]:
        assert size["step_seconds"]["value"] == pytest.approx(law(size["num_devices"]), rel=1e-4)
        assert size["step_seconds"]["least"] < law(size["num_devices"]) < size["step_seconds"]["most"]
        assert size["efficiency"]["value"] == pytest.approx(
            16 * law(16) / (size["num_devices"] * law(size["num_devices"]))
        )
    assert result["not_estimated"] is None


def test_printed_answer_has_the_table_the_worth_and_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person reads measured and estimated sizes, how many devices are worth it, and a report with its command."""
    runs = [generated(tmp_path, ranks, law(ranks), nodes=ranks // 8) for ranks in (16, 32)]
    result = fit_scaling.answer({}, runs)
    result.print()
    text = capsys.readouterr().out
    assert result.exit_code == 0
    assert [line.split()[:2] for line in text.splitlines()[2:8]] == [
        ["16", "measured"], ["32", "measured"],
        ["64", "estimated"], ["128", "estimated"], ["256", "estimated"], ["512", "estimated"],
    ]  # fmt: skip
    for share in ("90%", "70%", "50%"):
        assert re.search(rf"^above {share}  .*ranks", text, re.MULTILINE)
    report = text.split("computing time:\n\n")[1]
    for word in (
        "python train.py",
        "on lumi",
        "On 16 ranks (2 nodes), a step took 150 ms",
        "speedup 1.50",
        "not measured",
    ):
        assert word in report
    assert report.count("On lumi, a training with") == 2


def test_json_of_a_benchmark_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its sizes with numbers count, with their spread; sizes without a known node are named as an assumption."""
    path = benchmark(tmp_path)
    result = fit_scaling.answer({}, [path]).as_data()
    assert [size["ranks"] for size in result["measured"]] == [1, 2, 4]
    assert result["estimated"][0]["step_seconds"]["value"] == pytest.approx(law(8))
    assert result["spread"] == pytest.approx(0.0101, abs=2e-4)
    fit_scaling.answer({"plot": str(tmp_path / "curve")}, [path]).as_data()
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    fit_scaling.answer({}, [path]).print()
    assert "how many devices a node has is not known" in capsys.readouterr().out


def test_machine_tells_where_a_node_ends(tmp_path: Path) -> None:
    """On LUMI, 16 devices need two nodes: sizes on one do not reach them, unless the gradients are known too."""
    path = benchmark(tmp_path)
    alone = fit_scaling.answer({"machine": "lumi"}, [path]).as_data()
    assert [size["num_devices"] for size in alone["estimated"]] == [8]
    assert "several nodes" in alone["not_estimated"]["reason"]
    with_gradients = fit_scaling.answer({"machine": "lumi", "parameters": "1B"}, [path]).as_data()
    assert [size["num_devices"] for size in with_gradients["estimated"]] == [8, 16, 32, 64]
    assert with_gradients["estimated"][1]["step_seconds"]["most"] > alone["estimated"][0]["step_seconds"]["most"] / 2


def test_one_run_needs_the_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A single size is refused, with the way out; the machine and the gradients bound weak scaling."""
    run = generated(tmp_path, 8, 0.5)
    result = fit_scaling.answer({"weak": ""}, [run])
    assert result.exit_code == 1
    assert "gradients" in result.as_data()["refused"]["reason"]
    result.print()
    assert "way out: measure another size too, such as 16 devices" in capsys.readouterr().out
    bounded = fit_scaling.answer({"weak": "", "parameters": "1B"}, [run]).as_data()
    size = bounded["estimated"][0]["step_seconds"]
    assert size["least"] < 0.5 < size["most"]


def test_different_trainings_are_not_mixed(tmp_path: Path) -> None:
    """Another strategy, and another batch, are named."""
    runs = [generated(tmp_path, 16, 0.3, nodes=2), generated(tmp_path, 32, 0.2, nodes=4, how="fsdp")]
    assert "strategy: data and fsdp" in fit_scaling.answer({}, runs).as_data()["refused"]["reason"]
    other = generated(tmp_path, 64, 0.15, nodes=8, samples=3 * BATCH)
    refused = fit_scaling.answer({}, [runs[0], other]).as_data()["refused"]
    assert "neither the same global batch nor the same batch for each device" in refused["reason"]


def test_picture_has_measured_and_estimated_sizes(tmp_path: Path) -> None:
    """Both stand in one picture, as SVG and as PNG."""
    pytest.importorskip("matplotlib")
    name = str(tmp_path / "picture")
    fit_scaling.answer({"plot": name}, [benchmark(tmp_path)]).as_data()
    drawn = (tmp_path / "picture.svg").read_text()
    assert "measured" in drawn
    assert "estimated" in drawn
    assert (tmp_path / "picture.png").stat().st_size > 0


def test_parts_of_what_a_rank_reports_are_not_needed(tmp_path: Path) -> None:
    """A run without samples and batches still has its mean rate; then the kind of scaling must be told."""
    runs = [generated(tmp_path, ranks, law(ranks), nodes=ranks // 8) for ranks in (16, 32)]
    for run in runs:
        (Path(run) / "samples.jsonl").unlink()
        events = (Path(run) / "events.jsonl").read_text()
        (Path(run) / "events.jsonl").write_text(re.sub(r'"samples": [0-9.]+, ', "", events))
    assert "do not tell" in fit_scaling.answer({}, runs).as_data()["refused"]["reason"]
    result = fit_scaling.answer({"strong": ""}, runs).as_data()
    assert result["spread"] == 0.02
    assert result["estimated"][0]["samples_per_second"] is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"format": 99}, "format 99"),
        ({"format": "x"}, "TypeError"),
        ({"sizes": "x"}, "TypeError"),
        ({"sizes": [{"ranks": 1}]}, "steps_per_second"),
        ({"sizes": []}, "no size of this benchmark has numbers"),
        (
            {
                "sizes": [
                    {
                        "ranks": 1,
                        "nodes": 1,
                        "steps_per_second": {"value": -1, "least": 1, "most": 1},
                        "samples_per_second": 1,
                    }
                ]
            },
            "a rate of -1",
        ),
    ],
)  # fmt: skip
def test_foreign_json_is_one_error(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    """What no benchmark printed is named, with the command that prints it."""
    with pytest.raises(UsageError, match=word):
        fit_scaling.answer({}, [benchmark(tmp_path, **changes)])


def test_wrong_inputs_are_one_error_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each names the thing, and has a repair to paste."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no JSON")
    short = Generated(tmp_path / "short")
    short.event("attempt", 1.0, number=0, ranks=1)
    short.event("end", 0.0, exit_code=0)
    path = benchmark(tmp_path)
    cases: list[tuple[dict[str, str], list[str], str]] = [
        ({}, [], "needs measured runs"),
        ({}, ["missing"], "no run missing"),
        ({}, ["text"], "not what echelon bench scaling --json prints"),
        ({}, ["short"], "made 0 optimizer steps"),
        ({"strong": "", "weak": ""}, [path], "two kinds of scaling"),
        ({"dtype": "bf16"}, [path], "needs --parameters"),
        ({"parameters": "many"}, [path], "--parameters many"),
        ({"machine": "nowhere"}, [path], "nowhere"),
        ({"machine": "lumi", "node_type": "x"}, [path], "--node-type x"),
        ({"plot": "missing/x"}, [path], "--plot missing/x"),
    ]
    for values, runs, word in cases:
        with pytest.raises(UsageError) as caught:
            fit_scaling.answer(values, runs)
        assert word in caught.value.message
        assert caught.value.hint


NUMBERS = st.one_of(
    st.integers(-3, 70), st.floats(), st.just(10**400), st.sampled_from([1e-320, 1e308, 0, True, None, "x"])
)
RANGES = st.one_of(NUMBERS, st.fixed_dictionaries({"value": NUMBERS, "least": NUMBERS, "most": NUMBERS}))
SIZES = st.lists(
    st.fixed_dictionaries(
        {"ranks": NUMBERS, "nodes": NUMBERS, "steps_per_second": RANGES, "samples_per_second": NUMBERS}
    ),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(
    sizes=SIZES,
    mode=st.sampled_from(["strong", "weak", "", "other"]),
    values=st.dictionaries(st.sampled_from(["strong", "weak"]), st.just(""), max_size=1),
)
def test_any_json_is_an_answer_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[Any], mode: str, values: dict[str, str]
) -> None:
    """No content of the file makes a traceback."""
    path = benchmark(tmp_path_factory.mktemp("any"), sizes=sizes, mode=mode)
    try:
        result = fit_scaling.answer(values, [path])
    except UsageError as error:
        assert error.message
        return
    data = result.as_data()
    assert (data["refused"] is None) or data["refused"]["reason"]


@pytest.mark.parametrize(
    "plan", [{"argv": 3}, {"scale_options": [1]}, {"num_nodes": "x"}, {"ranks_per_node": "x", "num_nodes": 2}]
)
def test_foreign_run_directory_is_one_error(tmp_path: Path, plan: dict[str, Any]) -> None:
    """A plan that echelon did not write is named."""
    run = Path(generated(tmp_path, 16, 0.2))
    (run / "plan.json").write_text(json.dumps({**json.loads((run / "plan.json").read_text()), **plan}))
    with pytest.raises(UsageError, match="echelon did not write"):
        fit_scaling.answer({}, [str(run)])
