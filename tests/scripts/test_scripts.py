"""Scripts for one device, written in the styles that people use, unchanged on 1, 2, 3 and 4 ranks.

`python script.py` is the oracle: each script runs once by itself and once for each number of ranks, in the background
and in the order of the tests; the tests compare what is left of these runs.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conftest import FOREIGN

FOLDER = Path(__file__).parent
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith(("test_", "__")))
RANKS = (1, 2, 3, 4)
RUN_SECONDS = 60
RELATIVE = 1e-5  # of a loss in float32

OWN_RANDOM_NUMBERS = "what is drawn in a step is drawn by each rank for its own samples"
# What the mathematics does not allow to be equal: the reason, and the factor within which the final loss must stay.
CLOSE: dict[str, tuple[str, float]] = {
    "augmentation": (OWN_RANDOM_NUMBERS + ": noise that is added to samples", 1.5),
    "autocast_bf16": ("sums over a share of the batch are rounded to 8 bits, as sums over the batch are", 1.02),
    "cnn_batchnorm": ("BatchNorm takes the statistics of each rank's samples", 3.0),
    "diffusion": (OWN_RANDOM_NUMBERS + ": times and noise", 1.3),
    "dropout_transformer": (OWN_RANDOM_NUMBERS + ": dropout", 1.5),
    "gan": (OWN_RANDOM_NUMBERS + ": the generator's input", 1.2),
    "mixup": (OWN_RANDOM_NUMBERS + ": by how much, and with which other sample of the rank, each is mixed", 2.0),
    "vae": (OWN_RANDOM_NUMBERS + ": the latent sample", 1.2),
}


class Known(NamedTuple):
    """What the mathematics allows and does not hold yet."""

    tests: str  # of losses, weights, output, files; on one rank all hold
    reason: str


ALL = "losses weights output files"
OWN_SIZES = "what the script counts is of this rank's share: len(batch), hits"
OTHER_MEAN = "the mean is not over samples: ranks differ in what they divide by, and the first-step check refuses"
KNOWN: dict[str, Known] = {
    "argparse_images": Known("output", OWN_SIZES),
    "class_weights": Known(ALL, OTHER_MEAN),
    "fixed_labels": Known(ALL, "the batch size of the script is a constant that a share does not have"),
    "functions_main": Known("output", OWN_SIZES),
    "nodes": Known(ALL, OTHER_MEAN),
    "numpy_files": Known(ALL, "what numpy writes through zipfile fails on the ranks that do not write"),
    "padded_tagger": Known(ALL, OTHER_MEAN),
    "sparse_embedding": Known(ALL, "DDP is not told which gradients are sparse"),
    "stop_at_loss": Known(ALL, OWN_SIZES + "; so ranks stop too early, and at different epochs"),
    "train_accuracy": Known("output", OWN_SIZES),
    "zipped_uneven": Known(ALL, "one weight stands for two loaders that are cut differently"),
}

NOT_ONE_DEVICE = "the first step is not that of one device"
REFUSED: dict[str, str] = {
    "batch_sampler_of_one": "the script's batch has 1 sample, and there are 2 ranks to share it",
    "backward_after_epoch": "it never called backward()",
    "constant_divisor": "the loss is a sum over the batch, or is divided by a batch size that is a constant",
    "data_parallel": "the script uses nn.DataParallel",
    "hidden_process_group": "the script distributes itself: it calls torch.distributed.init_process_group()",
    "mentions_ddp": "distributes itself: it mentions torch.nn.parallel.DistributedDataParallel",
    "object_stream": "a batch holds no tensor whose first dim counts samples",
    "one_by_one": "the script's batch has 1 sample, and there are 2 ranks to share it",
    "own_update": "backward() was called on samples that did not come from a DataLoader",
    "own_process_group": "distributes itself: it mentions torch.distributed",
    "packed_stream": "the tensors of a batch differ in their first dim",
    "permuted_slices": "backward() was called on samples that did not come from a DataLoader",
    "random_batches": "backward() was called on samples that did not come from a DataLoader",
    "reinforce": "backward() was called on samples that did not come from a DataLoader",
    "scores_in_train_mode": "it never called backward()",
    "simclr": NOT_ONE_DEVICE,  # a sample's negatives are those of its rank
    "sum_in_part": NOT_ONE_DEVICE,
    "sum_loss": "the loss is a sum over the batch, or is divided by a batch size that is a constant",
    "trains_in_eval": "backward() was called on samples that did not come from a DataLoader",
    "uses_accelerate": "distributes itself: it imports accelerate",
    "uses_lightning": "distributes itself: it imports lightning",
    "whole_batch_gradient": NOT_ONE_DEVICE,
}
# To be refused in future; not asserted.
EXPECTED_LATER: dict[str, str] = {
    "two_devices": "the model has parts on several devices",
}


class Done(NamedTuple):
    """What one run left behind."""

    folder: Path
    returncode: int
    out: str
    err: str

    def steps(self) -> list[tuple[int, float]]:
        found = re.findall(r"^step (\d+)\b.*?\bloss (\S+)", self.out, re.MULTILINE)
        return [(int(step), float(loss)) for step, loss in found]

    def losses(self) -> list[float]:
        assert self.returncode == 0, f"exit code {self.returncode}\n{self.out[-500:]}\n{self.err[-3000:]}"
        steps = self.steps()
        assert [step for step, _ in steps] == list(range(len(steps)))
        return [loss for _, loss in steps]

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


def start(path: Path, num_ranks: int, folder: Path, *more: str) -> Done:
    """Run a script to its end; 0 ranks is Python alone."""
    work = folder / f"{path.stem}-{num_ranks}"
    work.mkdir(parents=True)
    command = [sys.executable]
    if num_ranks:
        command += ["-m", "echelon", "run", "-n", str(num_ranks), "--scale", "data", "--timeout", str(RUN_SECONDS)]
        command += ["--run-dir", str(folder / f"{path.stem}-{num_ranks}-run"), *more]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    environ["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [*command, str(path), "model.pt"],
        cwd=work,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS + 30,
        check=False,
    )
    return Done(work, done.returncode, done.stdout, done.stderr)


class Runs:
    """The runs that the chosen tests need, two at a time, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(max_workers=2)
        self._futures: dict[tuple[str, int], Future[Done]] = {}

    def plan(self, name: str, *every_num_ranks: int) -> None:
        for key in ((name, num_ranks) for num_ranks in every_num_ranks):
            if key not in self._futures:
                self._futures[key] = self._pool.submit(start, FOLDER / f"{name}.py", key[1], self._folder)

    def get(self, name: str, num_ranks: int) -> Done:
        return self._futures[name, num_ranks].result()

    def pair(self, name: str, num_ranks: int) -> tuple[Done, Done]:
        return self.get(name, 0), self.get(name, num_ranks)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    every = Runs(tmp_path_factory.mktemp("scripts"))
    for item in request.session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if item.path == Path(__file__) and "num_ranks" in params:
            every.plan(params["name"], 0, params["num_ranks"])
        elif item.path == Path(__file__) and "refused" in params:
            every.plan(f"refused/{params['refused']}", 2)
    yield every
    every.close()


def ranks_of(name: str) -> tuple[int, ...]:
    """Return on how many ranks a script runs: every fifteenth on all, the others in turns on 2, 3 or 4.

    With ECHELON_ALL_RANKS=1 every script runs on 1, 2, 3 and 4 ranks, which takes three times as long.
    """
    place = SCRIPTS.index(name)
    return RANKS if place % 15 == 0 or os.environ.get("ECHELON_ALL_RANKS") else (RANKS[1:][place % 3],)


def each(test: str) -> Any:
    """Parametrize with every script and number of ranks, and mark what is known not to hold."""
    rows = []
    for name in SCRIPTS:
        known = KNOWN.get(name, Known("", ""))
        for num_ranks in ranks_of(name):
            is_known = test in known.tests.split() and num_ranks > 1
            marks = [pytest.mark.xfail(reason=known.reason, strict=False)] if is_known else []
            rows.append(pytest.param(name, num_ranks, id=f"{name}-{num_ranks}", marks=marks))
    return pytest.mark.parametrize(("name", "num_ranks"), rows)


@each("losses")
def test_losses(runs: Runs, name: str, num_ranks: int) -> None:
    """Every step's loss is that of one device; where that cannot be, the training goes as well."""
    alone, scaled = runs.pair(name, num_ranks)
    expected, found = alone.losses(), scaled.losses()
    assert len(expected) >= 50
    assert len(found) == len(expected)
    if name in CLOSE and num_ranks > 1:
        last, last_alone = sum(found[-5:]) / 5, sum(expected[-5:]) / 5
        assert last_alone / CLOSE[name][1] <= last <= last_alone * CLOSE[name][1]
        return
    for step, (loss, by_alone) in enumerate(zip(found, expected, strict=True)):
        assert loss == pytest.approx(by_alone, rel=RELATIVE, abs=2e-8), f"step {step}"


@each("weights")
def test_weights(runs: Runs, name: str, num_ranks: int) -> None:
    """What was saved loads without echelon, has the names that one device gives, and agrees."""
    import torch

    alone, scaled = (flat(torch.load(done.folder / "model.pt")) for done in runs.pair(name, num_ranks))
    assert list(scaled) == list(alone)
    assert not [key for key in scaled if "module." in key]
    for key, value in scaled.items():
        if not isinstance(value, torch.Tensor):
            assert value == alone[key], key
            continue
        assert (value.shape, value.dtype, value.device) == (alone[key].shape, alone[key].dtype, alone[key].device), key
        difference = (value.double() - alone[key].double()).norm()
        assert torch.isfinite(difference), key
        if name not in CLOSE or num_ranks == 1:
            assert difference <= 1e-4 * alone[key].double().norm() + 1e-6, key


@each("output")
def test_output(runs: Runs, name: str, num_ranks: int) -> None:
    """Each line appears once, and says what it says on one device."""
    alone, scaled = runs.pair(name, num_ranks)
    are_equal = name not in CLOSE or num_ranks == 1
    compare_text(alone.out, scaled.out, are_equal=are_equal)


@each("files")
def test_files(runs: Runs, name: str, num_ranks: int) -> None:
    """The same files are there, each whole and written once."""
    import numpy as np
    import torch

    alone, scaled = runs.pair(name, num_ranks)
    assert scaled.files() == alone.files()
    for file in scaled.files():
        path = scaled.folder / file
        if path.suffix == ".pt":
            torch.load(path)
        elif path.suffix in (".npy", ".npz"):
            np.load(path)
        else:
            are_equal = name not in CLOSE or num_ranks == 1
            compare_text((alone.folder / file).read_text(), path.read_text(), are_equal=are_equal)


@pytest.mark.parametrize("refused", sorted(REFUSED))
def test_refused(runs: Runs, refused: str) -> None:
    """A script that cannot be scaled ends with the reason and a way out, and leaves no result."""
    done = runs.get(f"refused/{refused}", 2)
    assert done.returncode != 0
    assert REFUSED[refused] in done.err
    assert "echelon run" in done.err or "way out" in done.err
    assert done.files() == []


def test_refused_program(tmp_path: Path) -> None:
    """A program after -- cannot be scaled."""
    done = start(Path("true"), 2, tmp_path, "--")
    assert done.returncode == 2
    assert "--scale data is for a Python script, and true is any program" in done.err


def test_refused_more_ranks_than_samples(tmp_path: Path) -> None:
    """A script that trains on 4 ranks is refused on 5 where its batches have 4 samples."""
    done = start(FOLDER / "accumulate.py", 5, tmp_path)
    assert done.returncode != 0
    assert "the script's batch has 4 samples, and there are 5 ranks to share it" in done.err


def test_every_refused_script_is_listed() -> None:
    """Each script that must be refused stands in one of the two tables, and what is close is a script."""
    found = {path.stem for path in (FOLDER / "refused").glob("*.py")}
    assert found == REFUSED.keys() | EXPECTED_LATER.keys()
    assert not REFUSED.keys() & EXPECTED_LATER.keys()
    assert CLOSE.keys() | KNOWN.keys() <= set(SCRIPTS)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_scripts_know_one_device(path: Path) -> None:
    """No script knows of ranks, and each has the size of something that people write in an hour."""
    if path.stem in SCRIPTS:
        text = path.read_text()
        assert not re.search(r"echelon|\bRANK\b|WORLD_SIZE|torch\.distributed\b|DistributedDataParallel", text)
        assert text.count("\n") <= 90


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def compare_text(alone: str, scaled: str, *, are_equal: bool) -> None:
    """Compare line by line: the words, and the numbers as far as their digits go."""
    lines, by_alone = scaled.splitlines(), alone.splitlines()
    assert len(lines) == len(by_alone)
    for line, expected in zip(lines, by_alone, strict=True):
        assert NUMBER.sub("#", line) == NUMBER.sub("#", expected)
        if are_equal:
            for one, other in zip(NUMBER.findall(line), NUMBER.findall(expected), strict=True):
                digits = len(other.partition(".")[2])
                margin = 1.5 * 10.0**-digits if digits else 0.0
                assert float(one) == pytest.approx(float(other), rel=1e-4, abs=margin), f"{line!r}, not {expected!r}"


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return what a saved object holds, by path."""
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, (list, tuple)):
        entries = list(enumerate(value))
    else:
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, one in entries:
        found.update(flat(one, f"{prefix}.{key}" if prefix else str(key)))
    return found
