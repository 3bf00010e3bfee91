"""What happens in a rank is hooked once, and listeners are called in the stated order."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests import warm

from echelon.train import events, patches

ORDER_OF_A_RANK = """
import json
import sys

import torch

events = sys.modules["_echelon.train.events"]
both = [events.before_step, events.after_step]
print(json.dumps([[event._places[entry.place] for entry in event._entries] for event in both]))
"""


@pytest.fixture
def no_patches() -> Iterator[None]:
    yield
    patches.undo()


def test_listeners_are_called_in_the_stated_order() -> None:
    """Who listens first is not called first, two of one place are called in turn, and True leaves out later ones."""
    event = events.Event("first", "second", "third")
    called: list[str] = []
    event.listen("third", called.append)
    event.listen("second", lambda name: called.append(f"{name} of the second"))
    event.listen("second", lambda name: called.append(f"{name} of the other") or name == "last")
    event.listen("first", lambda name: called.append(f"{name} of the first"))
    event("a")
    event("last")
    in_order = ["of the first", "of the second", "of the other"]
    assert called == [*(f"a {words}" for words in in_order), "a", *(f"last {words}" for words in in_order)]


@pytest.mark.usefixtures("no_patches")
def test_steps_are_hooked_once() -> None:
    """All listeners have one row of the table, with their reasons; an undone hook forgets them."""
    for _ in range(2):
        stepped: list[object] = []
        events.after_step.listen("bench", stepped.append, why="One.")
        events.after_step.listen("pulse", stepped.append, why="Other.")
        rows = [row for row in patches.rows() if row.by == "events"]
        assert [row.why for row in rows] == ["Other. One."]
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        optimizer.step()
        assert stepped == [optimizer, optimizer]
        patches.undo()
        optimizer.step()
        assert len(stepped) == 2


@pytest.mark.usefixtures("no_patches")
def test_new_optimizers_and_cleared_gradients_are_told() -> None:
    """A new optimizer is told once it is made, and gradients are there while it is told that they are cleared."""
    made: list[object] = []
    seen: list[object] = []
    weight = torch.nn.Parameter(torch.ones(1))
    events.made.listen("names", made.append, why="A test.")
    events.cleared.listen("journal", lambda owner: seen.append((owner, weight.grad is None)), why="A test.")
    optimizer = torch.optim.AdamW([weight])
    assert made == [optimizer]
    weight.grad = torch.ones(1)
    optimizer.zero_grad()
    assert (seen, weight.grad) == ([(optimizer, False)], None)


def test_order_of_a_scaled_rank(tmp_path: Path) -> None:
    """Gradients are whole before they are compared, and a step is counted before anything else looks at it."""
    (tmp_path / "train.py").write_text(ORDER_OF_A_RANK)
    done = warm.run(["-m", "echelon", "run", "-n", "2", "--scale", "data", "train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    checks = ["first step", "later steps"]
    assert before == ["measuring", "row trials", "children", "parallelism", "draws", *checks]
    assert after == ["pulse", "measuring", "parallelism", "pace"]
