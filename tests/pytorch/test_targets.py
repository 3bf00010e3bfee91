"""The names of PyTorch that echelon needs: they are there, and one that is gone is told before anything is replaced."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests import warm

from echelon.pytorch import targets

ROWS = [target for feature in targets.FEATURES for target in targets.of(feature)]
SENTENCE = "does not know this PyTorch ("
TRAINS = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4):
    model(batch).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""
DELETES = """
import json, os, sys
import torch, torch.utils.checkpoint
from echelon.pytorch import targets
from echelon.orders.scale import DEFAULT
from echelon.train import automatic

os.environ.update(RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2")

def delete(target):
    *owners, last = target.attribute.split(".")
    owner = sys.modules[target.module]
    for word in owners:
        owner = getattr(owner, word)
    for kind in getattr(owner, "__mro__", [owner]):
        if last in vars(kind) and kind is not object:
            delattr(kind, last)
    return not hasattr(owner, last)

told = {}
for target in targets.of("scale"):
    reading, writing = os.pipe()
    if not os.fork():
        os.dup2(writing, 2)
        try:
            is_gone = delete(target)
        except TypeError:
            is_gone = False  # a name of a class of C
        if is_gone:
            automatic.begin(DEFAULT._replace(how="data").to_json(), was_forked=True)
            os._exit(0)
        os._exit(99)
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    told[target.name] = [os.waitstatus_to_exitcode(os.wait()[1]), text]
print(json.dumps(told))
"""


def import_all() -> None:
    for module in {target.module for target in ROWS}:
        if not module.startswith(("torch.onnx", "torch._VF")):  # torch.onnx needs a package of its own in some versions
            import_module(module)


def test_each_name_is_there() -> None:
    """This PyTorch has all of them, with the parameters that the hooks count on."""
    import_all()
    assert {feature: targets.changes(feature) for feature in targets.FEATURES} == {
        feature: [] for feature in targets.FEATURES
    }


class Without:
    """A module without one name."""

    def __init__(self, module: Any, missing: str) -> None:
        self._module, self._missing = module, missing

    def __getattr__(self, name: str) -> Any:
        first, _, rest = self._missing.partition(".")
        if name != first:
            return getattr(self._module, name)
        if not rest:
            raise AttributeError(name)
        return Without(getattr(self._module, name), rest)


def test_each_name_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any part of echelon."""
    import_all()
    for feature in targets.FEATURES:
        for target in targets.of(feature):
            if target.module not in sys.modules or hasattr(object, target.attribute.rpartition(".")[2]):
                continue
            with monkeypatch.context() as patch:
                patch.setitem(sys.modules, target.module, Without(sys.modules[target.module], target.attribute))
                assert f"`{target.name}` is missing" in targets.changes(feature)


def test_each_hook_that_is_deleted_ends_a_rank_with_the_sentence(tmp_path: Path) -> None:
    """A rank whose PyTorch lacks a name says so, whichever it is, and ends with 2 before it trains."""
    (tmp_path / "deletes.py").write_text(DELETES)
    done = warm.run(["deletes.py"], cwd=tmp_path, timeout=250)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    deleted = {name: answer for name, answer in told.items() if answer[0] != 99}
    assert len(deleted) > 100
    wrong = {
        name: answer
        for name, answer in deleted.items()
        if answer[0] != 2 or f".{name.rpartition('.')[2]}` is missing" not in answer[1] or SENTENCE not in answer[1]
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("function", "is_known"),
    [
        (lambda tensors, grad_tensors, retain_graph=None: None, True),
        (lambda tensors, grad_tensors, more=1, **words: None, True),
        (lambda losses, grad_tensors: None, False),
        (lambda grad_tensors, tensors: None, False),
        (None, False),
        (len, True),
    ],
    ids=["as-now", "one-more", "renamed", "turned", "no-function", "of-c"],
)
def test_changed_parameters_are_told(monkeypatch: pytest.MonkeyPatch, function: Any, is_known: bool) -> None:
    """A hook counts on names and order of the parameters that it uses; others may follow."""
    import torch

    monkeypatch.setattr(torch.autograd, "backward", function)
    assert targets.changes("measure") == ([] if is_known else ["`torch.autograd.backward` has changed"])


def run(folder: Path, breaks: str, *words: str, is_forked: bool = True) -> Any:
    """Start a script under a PyTorch that the site's own sitecustomize has changed."""
    (folder / "train.py").write_text(TRAINS)
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(breaks)
    command = ["-m", "echelon", "run", "-n", "2", *words, "train.py"]
    environ = {**os.environ, "PYTHONPATH": str(folder / "site")}
    if is_forked:
        return warm.run(command, cwd=folder, environ=environ)
    command = [sys.executable, *command]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=200)


def test_run_with_an_unknown_pytorch(tmp_path: Path) -> None:
    """The run says what it is, and that it is no mistake of the script."""
    done = run(tmp_path, "import torch\ndel torch.autograd.backward\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "`torch.autograd.backward` is missing; tested with 2.6 to 2.15" in done.stderr
    assert "way out: pip install torch==" in done.stderr
    assert "echelon: echelon does not know this PyTorch" in done.stderr
    assert "Traceback" not in done.stderr
    assert "error in the script" not in done.stderr


def test_run_without_what_it_only_measures_with(tmp_path: Path) -> None:
    """Without a name that only the report needs, the training goes on, and one line says so."""
    done = run(tmp_path, "import torch.distributed as dist\ndel dist.Work.wait\n", "--scale", "off")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"
    assert done.stderr.count("; this run is not measured\n") == 1


def test_rank_ends_without_a_word(tmp_path: Path) -> None:
    """Also where triton is imported, whose types stay until the end: 2.15 imports it for each optimizer."""
    done = run(tmp_path, "", "--scale", "off", is_forked=False)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "nanobind" not in done.stderr
    assert "leaked" not in done.stderr


def test_error_names_the_versions() -> None:
    """Ours, PyTorch's and those that were tried."""
    error = targets.error_of(["`torch.save` is missing", "`torch.load` is missing"])
    assert error.message.startswith("echelon 0")
    assert "`torch.save` is missing (and 1 more); tested with" in error.message
    assert error.exit_code == 2
