"""`echelon rehearse` as a user runs it: verdicts, a clean folder, and one clear error for what cannot be rehearsed."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests import warm
from tests.runs import left_behind

SCRIPT = Path(__file__).parents[1] / "faults" / "rehearsed.py"
SPLIT = Path(__file__).parents[1] / "train" / "replay" / "blocks.py"
OWN = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters())
start = 0
if os.path.exists("snapshot.pt"):
    found = torch.load("snapshot.pt")
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    start = found["step"]
for step in range(start, 12):
    torch.manual_seed(step * 10 + dist.get_rank())
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if SAVES and dist.get_rank() == 0:
        found = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(found, "new.pt")
        os.replace("new.pt", "snapshot.pt")
dist.destroy_process_group()
"""


def rehearse(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return warm.run(["-m", "echelon", "rehearse", *words], cwd=folder)


def test_verdicts_of_a_script_for_one_device(tmp_path: Path) -> None:
    cycle = "import itertools\nnames = itertools.cycle('ab')\n"
    stepping = "        optimizer.step()\n"
    text = SCRIPT.read_text().replace(stepping, stepping + "        name = next(names)\n")
    (tmp_path / "train.py").write_text(cycle + text)
    done = rehearse(tmp_path, "-n", "2", "--faults", "kill-rank,fill-disk", "train.py")
    assert done.returncode == 0, done.stderr
    kill, fill = done.stdout.splitlines()
    assert kill.split()[0] == "kill-rank"
    assert "computed again; goes on after" in kill
    assert kill.endswith("; the same weights")
    assert fill.endswith("survives: 0 steps lost; is not interrupted; the same weights")
    assert "undisturbed: 20 steps on 2 ranks in" in done.stderr
    assert re.search(r"repeats its steps without computing: train\.py:\d+: `names`: the position of", done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert left_behind(str(tmp_path)) == []


@pytest.mark.tier("all")  # test_split_models.py has split models too
def test_verdict_of_a_split_model(tmp_path: Path) -> None:
    """A model that is spread over the ranks survives; test_split_models.py shows that its whole state is compared."""
    shutil.copy(SPLIT, tmp_path / "train.py")
    done = rehearse(tmp_path, "-n", "2", "--scale", "fsdp", "--faults", "kill-rank", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "computed again; goes on after" in done.stdout


@pytest.mark.tier("all")
def test_verdicts_of_a_script_that_distributes_itself(tmp_path: Path) -> None:
    """It goes on at its own snapshot; another start of its loop without one begins again, and says so by the steps."""
    lost = []
    for saves in (True, False):
        (tmp_path / "train.py").write_text(OWN.replace("SAVES", str(saves)))
        done = rehearse(tmp_path, "-n", "2", "--faults", "kill-rank", "--json", "train.py")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["steps"] == 12
        lost.append(told["faults"][0]["lost_steps"])
    assert lost[0] <= 2 < lost[1]


NAMED = """
import echelon, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(dist.get_rank())
checkpoint = echelon.checkpoints(model=model, optimizer=optimizer)
while checkpoint.step_number < 20:
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    checkpoint.step()
checkpoint.wait()
dist.destroy_process_group()
"""


@pytest.mark.tier("all")  # tests/train/rehearsal tears such checkpoints, and tests/slurm ends such jobs
def test_verdicts_of_a_script_that_saves_with_echelon(tmp_path: Path) -> None:
    """Its checkpoints are torn and its order is carried out, as those of a script for one device; from any folder."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "train.py").write_text(NAMED)
    (tmp_path / "work").mkdir()
    faults = "tear-checkpoint,signal-before-limit"
    done = rehearse(tmp_path / "work", "-n", "2", "--faults", faults, "--json", "../scripts/train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)["faults"]
    assert [row["same_bits"] for row in told] == [True] * 2
    assert [row["lost_steps"] <= most for row, most in zip(told, (15, 0), strict=True)] == [True] * 2
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["train.py"]


@pytest.mark.tier("all")
def test_script_that_forgets_its_optimizer_fails(tmp_path: Path) -> None:
    """Its snapshot lacks the optimizer's state, so it goes on as another training."""
    forgetful = OWN.replace("SAVES", "True").replace('    optimizer.load_state_dict(found["optimizer"])\n', "")
    (tmp_path / "train.py").write_text(forgetful)
    done = rehearse(tmp_path, "-n", "2", "--faults", "kill-rank", "train.py")
    assert done.returncode == 1, done.stdout
    assert "fails: the weights are others at the end: optimizer-0/" in done.stdout
    assert "a run with the last bits of gradients changed shows what rounding does" in done.stderr


@pytest.mark.parametrize(
    ("script", "words", "code", "text"),
    [
        ("print('hello')\n", (), 2, "the script made 0 steps of an optimizer, and a rehearsal needs 4"),
        ("", ("--faults", "kill"), 2, "--faults kill: the choices are kill-rank, freeze-rank, kill-agent, drop-node"),
        (OWN, ("--faults", "fill-disk"), 2, "train.py distributes itself, and this fault is for"),
        (OWN, ("--steps", "9"), 2, "--steps is for a script that echelon scales"),
        ("", ("--steps", "3"), 2, "--steps 3: give a whole number of at least 4"),
        ("", ("--seed", "x"), 2, "--seed x: give a whole number"),
        ("raise SystemExit(3)\n", (), 1, "the run without a fault failed:"),
        (SCRIPT.read_text().replace('f"best-', 'f"FOLDER/best-'), ("--steps", "20"), 2,
         "which is outside of the copy of its folder"),
    ],
)  # fmt: skip
def test_wrong_input_has_one_error(tmp_path: Path, script: str, words: "tuple[str, ...]", code: int, text: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text(script.replace("FOLDER", str(folder)))
    done = rehearse(folder, *words, "train.py")
    assert done.returncode == code, done.stderr
    assert text in done.stderr.replace("\n ", " ")
    assert "hint:" in done.stderr or code == 1
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["train.py"]
