"""Each script, unchanged: killed at a random step, continued on another number of ranks, the losses of one device.

In the tier "all" all scripts; else some of them.
"""

import random
import re
import zlib
from pathlib import Path

import pytest
from tests.tiers import pick

from echelon.orders import codec, rehearsal
from echelon.orders.rehearsal import KILL_RANK, Fault, Rehearsal

from . import same
from .runs import FOLDER, Done, Runs, start

pytestmark = pytest.mark.apart
ALL = sorted(path.stem for path in FOLDER.glob("*.py"))
ONCE_WRONG = ("checkpoint_resume", "closure_adam", "compiled", "evolution", "experts", "lbfgs", "meta_learning")
ONCE_WRONG += ("selected_rows", "siamese", "workers", "zipped_uneven")
REFUSED = ("masked_tokens", "per_sample_derivatives")
CHOSEN = pick(("evolution", "workers"), all=[name for name in ALL if name not in REFUSED])
LAST_STEP = {"accumulate": 18, "accumulate_over_epochs": 18, "clamped_gradients": 25}
"""Scripts with fewer than 40 steps of their optimizer."""


REPEATED = ("evolution", "meta_learning", "zipped", "zipped_uneven")
"""Scripts whose loop is repeated, because of what survive.md names."""


class Moment:
    """When a script is killed, how often it is saved, and on how many ranks: random, but the same in every test run."""

    def __init__(self, name: str) -> None:
        chance = random.Random(zlib.crc32(name.encode()))
        self.before, self.after = chance.sample([1, 2, 3], 2)
        self.every = chance.randint(3, 9)
        self.step = chance.randint(self.every + 1, LAST_STEP.get(name, 40))
        self.rank = chance.randrange(self.before)

    def fault(self) -> dict[str, str]:
        return {rehearsal.VARIABLE: codec.write(Rehearsal(Fault(KILL_RANK, self.rank, self.step)))}


def killed_and_resumed(name: str, folder: Path) -> tuple[Done, Done]:
    """Return both runs of a script: the one that is killed, and the one that continues."""
    moment = Moment(name)
    path, saves = FOLDER / f"{name}.py", ["--checkpoint-every", f"{moment.every}steps"]
    first = start(path, moment.before, folder, *saves, "--max-restarts", "0", environ=moment.fault(), name="first")
    second = start(path, moment.after, folder, *saves, "--resume", str(folder / "first-run"), name="first")
    return first, second


def test_transformed_model_is_refused(tmp_path: Path) -> None:
    """A model inside of torch.func has results that no journal can keep; it was told as an error of the script."""
    done = start(FOLDER / "per_sample_derivatives.py", 1, tmp_path, "--checkpoint-every", "5steps", name="refused")
    assert done.returncode == 2
    assert "--checkpoint-every cannot repeat a call of Sequential inside of torch.func" in done.err


@pytest.mark.parametrize("name", CHOSEN)
def test_killed_script_is_resumed(runs: Runs, tmp_path: Path, name: str) -> None:
    """The losses after the checkpoint, the weights and the files are those of a run that nobody disturbed."""
    alone = runs.get(name, 0)
    first, second = killed_and_resumed(name, tmp_path)
    assert first.returncode == 137, first.err
    assert "Traceback" not in second.err
    assert second.returncode == 0, second.err
    saved = int(re.search(r"continues after step (\d+)", second.err)[1])  # type: ignore[index]
    assert saved >= Moment(name).every
    assert (name in REPEATED) != ("; its variables were put back" in second.err)
    lines = alone.out.splitlines()[-len(second.out.splitlines()) :]
    same.text("\n".join(lines), second.out, are_equal=False)
    steps = {**dict(first.steps()), **dict(second.steps())}
    assert second.steps()[0][0] > 0
    is_one = {Moment(name).before, Moment(name).after} == {1}
    same.losses(name, alone.losses(), [steps[step] for step in sorted(steps)], is_one=is_one)
    same.weights(name, alone.folder, second.folder, is_one=is_one)
