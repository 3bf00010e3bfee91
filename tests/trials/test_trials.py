"""Trials of `echelon profile --try`: what is tried, what is said about it, and a real one."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import warm
from tests.trials.generated import Folder

from echelon.errors import EchelonError
from echelon.host import Host
from echelon.monitor.traces.verdict import COMMUNICATION, INPUT
from echelon.orders import bench
from echelon.orders.scale import DEFAULT, ScaleOptions
from echelon.trials import candidates
from echelon.trials.candidates import TriedChange

WORKERS = TriedChange(name="num_workers=4", loader_workers=4)
COMPRESS = TriedChange(name="--compress bf16", price="other last digits", options=("--compress", "bf16"))
LESS = ["--compress bf16", "--sync-every 10"]


def names(
    *, options: "ScaleOptions | None" = DEFAULT, saves: bool = False, data: float = 0.0,
    workers: "int | None" = None, shares: "Sequence[tuple[float, float]]" = ((0.0, 0.5),),
) -> list[str]:  # fmt: skip
    """Return what is tried; `shares` are those of input and communication in each trace."""
    training = SimpleNamespace(share=lambda _: data, loader_workers=workers)
    verdicts: Any = [SimpleNamespace(shares=dict(zip((INPUT, COMMUNICATION), pair, strict=True))) for pair in shares]
    record: Any = SimpleNamespace(scale_options=options, saves=saves)
    account: Any = SimpleNamespace(training=training)
    return [candidate.name for candidate in candidates.candidates(verdicts, record, account)]


def test_only_what_run_accepts_for_the_script_is_tried() -> None:
    """The rules are those of the command line: options that contradict the run's are no candidates."""
    assert names() == LESS
    assert names(options=ScaleOptions(bucket_megabytes=4.0)) == LESS[:1]
    for options in (None, ScaleOptions(how="fsdp"), ScaleOptions(num_shards=4), ScaleOptions(steps_alone=8)):
        assert names(options=options) == []
    assert names(saves=True) == []
    assert names(shares=[(0.0, 0.5), (0.0, 0.05)]) == []


def test_workers_are_tried_where_some_rank_waits_for_data() -> None:
    """Twice as many, at least two; a script without a DataLoader has none."""
    assert names(shares=[(0.2, 0.0)], workers=0) == ["num_workers=2"]
    assert names(shares=[(0.0, 0.0)], data=0.2, workers=3) == ["num_workers=6"]
    assert names(shares=[(0.0, 0.0)], workers=0) == names(shares=[(0.5, 0.0)]) == []


def of(seconds: float, *without: float, spread: float = 0.0) -> candidates.Trials:
    def steps(mean: float) -> tuple[float, ...]:
        return tuple(mean + spread * (-1) ** step for step in range(10))

    trial = candidates.Trial(candidate=COMPRESS, seconds=steps(seconds))
    return candidates.Trials(tried=(trial,), without=tuple(map(steps, without)))


def test_gain_is_told_only_where_it_exceeds_what_runs_differ_by() -> None:
    said = "tried     --compress bf16 (other last digits): "
    assert of(0.0121, 0.0152, 0.0154).text() == f"{said}12.1 ms a step instead of 15.3 ms\n"
    noise = [
        of(0.014, 0.0145, 0.0161),  # the runs without it differ by more
        of(0.014, 0.0153, 0.0153, spread=0.004),  # the steps do
        of(0.0151, 0.0153, 0.0153),  # too little to be worth a change
        of(0.02, 0.015, 0.016),
    ]
    assert not any(case.helps(case.tried[0]) for case in noise)
    assert noise[-1].text() == f"{said}no clear gain: 20 ms a step, and 15 ms to 16 ms without it\n"


class Ranks(Host):
    """Writes the record of each run in place of starting it."""

    def __init__(self, exit_codes: Mapping[str, int], *, num_steps: int = 50, workers: int = 4) -> None:
        self._exit_codes, self._num_steps, self._workers = exit_codes, num_steps, workers
        self.words: list[list[str]] = []

    def start(self, argv: Sequence[str], **_: Any) -> Any:
        words = list(argv)
        self.words.append(words)
        [order] = [word.partition("=")[2] for word in words if word.startswith(bench.VARIABLE)]
        fields = json.loads(order)
        name = "--compress bf16" if "bf16" in words else "workers" if fields["loader_workers"] else "no change"
        code = self._exit_codes.get(name, 0)
        folder, text = Path(fields["folder"]), "echelon: error: no"
        if code != 2:
            generated = Folder(folder.parent / f"of-{folder.name}")
            measures = {"loader_workers": self._workers, "step_seconds": 1.0, "backward_seconds": 1.0}
            start = generated.run(
                2, [0.1] * 39 + [0.05 if name == "workers" else 0.2] * (self._num_steps - 40),
                exit_code=code, cause="error in the script" if code else "", measures=measures,
            )  # fmt: skip
            run = Path(words[words.index("--run-dir") + 1])
            (generated.path / start.run).rename(run)
            (generated.path / start.folder / bench.SECONDS_FILE).rename(folder / bench.SECONDS_FILE)
        say = f"import sys\nprint({text!r})\nsys.exit({code})"
        return subprocess.Popen([sys.executable, "-IS", "-c", say], stdout=subprocess.PIPE)


def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Ranks) -> str:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    asked = candidates.question(["train.py", "3"], ["-n", "2", "--scale", "auto"], is_module=False, is_own=False)
    return candidates.measure(asked, [WORKERS, COMPRESS], host, lambda _: None).text()


def test_candidate_that_run_refuses_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a run knows whether its script can have the option; its last ten steps are what counts."""
    host = Ranks({"--compress bf16": 2})
    assert tried(tmp_path, monkeypatch, host) == "tried     num_workers=4: 50 ms a step instead of 200 ms\n"
    assert [words[-1] for words in host.words] == ["3"] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_candidate_that_fails_or_has_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders of streams keep their workers: then nothing was tried. An option that breaks the script is told."""
    said = tried(tmp_path, monkeypatch, Ranks({"--compress bf16": 1}, workers=0))
    assert said == "tried     --compress bf16 (other last digits): failed: error in the script\n"


def test_nothing_had_an_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert candidates.NOTHING in tried(tmp_path, monkeypatch, Ranks({"--compress bf16": 2, "workers": 2}))


def test_run_without_a_change_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EchelonError, match="--try: the run with no change failed: error in the script"):
        tried(tmp_path, monkeypatch, Ranks({"no change": 1}))
    with pytest.raises(EchelonError, match="the script makes 45 steps, and a trial needs 50"):
        tried(tmp_path, monkeypatch, Ranks({}, num_steps=45))


SLOW = """
import sys
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 2 * int(sys.argv[1])

    def __getitem__(self, place):
        time.sleep(0.01)
        return torch.ones(4)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in DataLoader(Slow(), batch_size=2):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
open("made", "w").close()
"""


def profile(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(SLOW)
    return warm.run(["-m", "echelon", "profile", "--check", "off", "--run-dir", "run", *words], cwd=folder)


def test_more_workers_are_tried(tmp_path: Path) -> None:
    """The workers of an unchanged script are raised, each run has a copy of the folder, and the times are measured.

    Whether the workers help depends on what else this machine does: a gain is told only if the times show it.
    """
    done = profile(tmp_path, "--try", "--json", "-n", "1", "train.py", "52")
    assert done.returncode == 0, done.stderr
    [told] = json.loads(done.stdout)["tried"]
    assert (told["candidate"], told["failure"]) == ("num_workers=2", "")
    assert min(told["step_seconds_without"]) >= 0.02  # two samples, one after the other
    assert not told["helps"] or told["step_seconds"] < min(told["step_seconds_without"])
    assert "50 steps with num_workers=2 …" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "run", "train.py"]


def test_without_the_option_nothing_is_tried(tmp_path: Path) -> None:
    """A line names what could be tried; a run with few steps cannot be."""
    done = profile(tmp_path, "-n", "1", "train.py", "20")
    assert done.returncode == 0, done.stderr
    assert "tried" not in done.stdout
    assert "echelon: --try measures what changes with num_workers=2\n" in done.stderr
    (tmp_path / "run").rename(tmp_path / "first")
    done = profile(tmp_path, "--try", "-n", "1", "train.py", "20")
    assert done.returncode == 1
    assert "the script makes 20 steps, and a trial needs 50" in done.stderr
