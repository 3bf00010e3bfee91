"""Whose error ended a rank: the script's, a library's, or echelon's own."""

from pathlib import Path

import pytest
from tests import warm
from tests.tiers import in_all

from echelon.launch import failure

TRAINS = """
import sys

import torch
{breaks}
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4):
    optimizer.zero_grad()
    loss = model(batch).mean()
    loss.item()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    {ends}
torch.save(model.state_dict(), "model.pt")
"""
BREAKS = """
module = sys.modules["_echelon.train.{module}"]
exec(compile("def broken(*_, **__):\\n    raise KeyError('deep inside')\\n", module.__file__, "exec"), vars(module))
assert hasattr({owner}, "{name}")
setattr({owner}, "{name}", module.broken)
"""
"""Replaces a function of echelon by one of the same module that fails."""


def run(folder: Path, breaks: str = "", ends: str = "pass", *words: str) -> tuple[int, str]:
    (folder / "train.py").write_text(TRAINS.format(breaks=breaks, ends=ends))
    done = warm.run(["-m", "echelon", "run", "-n", "2", "--no-check", *words, "train.py"], cwd=folder)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("module", "owner", "name"),
    [
        in_all("run", "module.Run", "begin"),
        ("run", "module.Run", "backward"),
        in_all("parallelism.replicated", "module.Replicated", "before_step"),
        ("parallelism.replicated", "module.Replicated", "after_step"),
        ("parallelism.calls", "module.Calls", "call"),
        ("global_tensors.rules", "module.GlobalTensor", "rule"),
        in_all("hooks", "module", "_scale_learning_rate"),
        ("rng.draws", "module.Draws", "place"),
        in_all("base_parallelism", "module.Parallelism", "current_parameter"),
        ("files.sharing", "module.Files", "act"),
        ("measuring.measures", "module.Measures", "loaded"),
    ],
)
def test_error_within_a_hook_is_told_as_a_mistake_of_echelon(
    tmp_path: Path, module: str, owner: str, name: str
) -> None:
    """With the frames of echelon, the versions, and the file to send."""
    code, err = run(tmp_path, BREAKS.format(module=module, owner=owner, name=name))
    assert code == 1, err
    assert failure.OWN_MISTAKE in err
    assert failure.USER_ERROR not in err
    assert "KeyError: 'deep inside'" in err
    assert "in broken" in err
    assert "echelon: this is a mistake of echelon, not of the script (echelon 0." in err
    assert ", PyTorch " in err
    assert "please report it, with this file:\n  log: " in err


@pytest.mark.parametrize(
    "ends",
    [
        "model(batch).item()",  # a function of C, which a hook calls for the script
        "model(torch.ones(3, 5))",
        "torch.optim.SGD([], lr=0.1)",
        "float('x')",
        "open('nowhere.txt')",
        "torch.load('nowhere.pt')",
        "(model(batch) @ torch.ones(7, 7)).sum()",
        "next(iter([]))",
        "batch.nothing",
    ],
)
def test_error_that_the_script_makes_through_a_hook_is_its_own(tmp_path: Path, ends: str) -> None:
    """Its traceback is that of plain Python."""
    code, err = run(tmp_path, ends=ends)
    assert code == 1, err
    assert failure.USER_ERROR in err
    assert failure.OWN_MISTAKE not in err
    assert "this is a mistake of echelon" not in err
    assert "/echelon/" not in err


def test_traceback_begins_with_the_script(tmp_path: Path) -> None:
    """What Python looked for in vain at its start, such as a sitecustomize, is no part of it."""
    _, err = run(tmp_path, "import sys; sys.modules['_echelon.train.start'].current()._no_such_name")
    assert "sitecustomize" not in err
    assert err.count("Traceback") == 1
