"""Options of scaling travel from the command line to each rank as they were chosen, or the rank says what is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests import warm

from echelon.cli import options, run
from echelon.errors import UsageError
from echelon.orders import bench, checkpoint, codec, profile, records, rehearsal
from echelon.orders.scale import DEFAULT, ScaleOptions

WORDS = (
    "--no-check --shard-eval --sync-bn --same-random --per-device-batch --scale-lr sqrt --compress powersgd:2:5",
    "--sync-every 4 --outer-lr 0.5 --outer-momentum 0.25 --async",
    "--exact 8",
    "--bucket-mb 4.0",
    "",
)


@pytest.mark.parametrize("words", WORDS)
def test_options_travel(words: str) -> None:
    """A rank reads what the command line chose, and what was chosen is shown as a person writes it."""
    chosen = run.read_job(options.scan([*words.split(), "train.py"])).scale_options
    assert ScaleOptions.from_json(chosen.to_json()) == chosen
    assert " ".join(chosen.written()) == words
    assert (chosen == DEFAULT) == (not words)


ORDERS = (
    (bench, bench.BenchOrder("/tmp/bench", steps=3)),
    (checkpoint, checkpoint.CheckpointOrder("/run/checkpoints", seconds=600.0, resumes=True)),
    (profile, profile.ProfileOrder(((0, 3), (8, 8)), 10, 15)),
    (records, records.RecordOrder("/tmp/record", 50, is_nudged=True)),
    (rehearsal, rehearsal.Rehearsal(rehearsal.Fault(rehearsal.KILL_RANK, rank=1, step=7), pace=0.5)),
    (rehearsal, rehearsal.Rehearsal()),
)


@pytest.mark.parametrize(("room", "order"), ORDERS)
def test_orders_travel(room: Any, order: Any) -> None:
    """A rank reads what was written, with tuples and orders inside of it; without the variable there is none."""
    assert room.read({room.VARIABLE: codec.write(order)}) == order
    assert room.read({}) is None


def test_wrong_order_is_refused() -> None:
    """A name that an order does not have is an error of its variable."""
    with pytest.raises(UsageError, match="ECHELON_BENCH: there is no option 'stepps'; the options are folder, steps,"):
        bench.read({bench.VARIABLE: '{"folder": "/tmp", "stepps": 3}'})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"num_shard": 8}', "there is no option 'num_shard'; the options are how,"),
        ('{"num_shards": "8"}', "num_shards is '8', which is not of type int"),
        ('{"is_late": 1}', "is_late is 1, which is not of type bool"),
        ("[8]", "is no JSON object"),
        ("fsdp", "'fsdp' is no JSON"),
    ],
)
def test_wrong_options_are_refused(text: str, reason: str) -> None:
    """An option that does not exist, or has a value of another type, is an error and is not left out."""
    with pytest.raises(UsageError, match=r"^ECHELON_SCALE: ") as refused:
        ScaleOptions.from_json(text)
    assert reason in refused.value.message


def test_rank_refuses_wrong_options(tmp_path: Path) -> None:
    """A rank that is given wrong options says so in two lines, and nothing is trained."""
    (tmp_path / "train.py").write_text("import torch\nprint('trained')\n")
    variable = "ECHELON_SCALE=" + json.dumps({"way": "fsdp"})
    done = warm.run(["-m", "echelon", "run", "-n", "2", "--scale", "off", "--env", variable, "train.py"], cwd=tmp_path)
    assert done.returncode == 2
    assert "echelon: error: ECHELON_SCALE: there is no option 'way'" in done.stderr
    assert "hint: unset ECHELON_SCALE" in done.stderr
    assert "Traceback" not in done.stderr
    assert "trained" not in done.stdout
