"""Does a model fit: what lies on a device under each strategy, the first that fits, and from how many ranks on."""

import json
import re
from pathlib import Path

import pytest
from tests.plan.test_command import echelon

from echelon.estimate.layout import Layout
from echelon.plan import memory
from echelon.plan.memory import DeviceGroup, Fit, TrainedModel

GIB = 1 << 30
PAGES = sorted((Path(__file__).parents[2] / "docs" / "strategies").glob("*.md"))
LUMI = "plan --machine lumi -t 2h"


def fits(num_parameters: float, num_ranks: int, **changes: str) -> dict[str, Fit]:
    """Judge a model on nodes of 8 devices with 64 GiB, as LUMI's are."""
    words = {"dtype": "fp32", "optimizer": "adamw", **changes}
    model = TrainedModel(num_parameters=int(num_parameters), dtype=words["dtype"], optimizer=words["optimizer"])
    devices = DeviceGroup(
        num_ranks=num_ranks, ranks_per_node=min(num_ranks, 8), device_bytes=64 * GIB, node_bytes=480 * GIB
    )
    return {fit.strategy: fit for fit in memory.fits(model, devices)}


@pytest.mark.parametrize("layout", memory.layouts(2), ids=lambda layout: layout.name)
def test_formula_is_that_of_the_page(layout: Layout) -> None:
    """What a rank keeps is what docs/strategies says of the strategy, where it is counted on real ranks."""
    row = f"| `{layout.code.replace(', offload=True', '')}` | "
    tables = "".join(page.read_text("utf-8").partition("## Memory")[2] for page in PAGES)
    formulas = re.findall(r"`([^`]+)`", tables.partition(row)[2][:60])[:3]
    kept = memory.kept(layout, TrainedModel(num_parameters=1000, dtype="fp32", optimizer="adamw"))
    for formula, what in zip(formulas, ("weights", "gradients", "states"), strict=True):
        assert kept[what] == 4 * eval(formula.replace("·", "*"), {"W": 1000, "s": 2, "r": 2}), what


def test_bytes_of_a_parameter() -> None:
    """Sixteen bytes for each in 32 bits with AdamW, a quarter of it in 16 bits with plain SGD."""
    whole, small = fits(1e9, 1)["data"], fits(1e9, 1, dtype="bf16", optimizer="sgd")["data"]
    assert whole.weights_bytes + whole.gradients_bytes + whole.states_bytes == 16e9
    assert small.weights_bytes + small.gradients_bytes + small.states_bytes == 4e9
    assert (whole.passing_bytes, fits(1e9, 2)["data"].passing_bytes) == (0, 4e9), "buckets, where there are others"


def test_least_ranks_is_the_least() -> None:
    """On so many ranks it fits where all is spread, and on one less it does not."""
    for size in (1e9, 7e9, 70e9, 405e9):
        least = memory.least_ranks(TrainedModel(num_parameters=int(size), dtype="fp32", optimizer="adamw"), 64 * GIB)
        assert fits(size, least)["fsdp" if least > 1 else "data"].fits
        assert least == 1 or not fits(size, least - 1)["fsdp" if least > 2 else "data"].fits


def test_memory_of_the_node_counts() -> None:
    """What is offloaded has to lie there: eight ranks share 480 GiB."""
    assert fits(20e9, 8)["offload"].fits
    assert not fits(70e9, 8)["offload"].fits
    assert "offload" not in fits(20e9, 1), "there is nobody to spread it over"


def test_first_that_fits_is_a_command(tmp_path: Path) -> None:
    """A table, then what to type: in the script, and for a script that is not changed."""
    done = echelon(tmp_path, f"{LUMI} --gpus 16 --parameters 7B")
    assert done.returncode == 0, done.stderr
    booked, _, table = done.stdout.partition("\n\n")
    assert booked == echelon(tmp_path, f"{LUMI} --gpus 16").stdout.rstrip("\n")
    lines = table.splitlines()
    assert lines[0] == "7B parameters in fp32 with adamw, on 16 ranks with 64 GiB each:"
    verdicts = {line.split()[0]: line.endswith("does not fit") for line in lines[2:7]}
    assert verdicts == {"data": True, "ZeRO-1": False, "ZeRO-2": False, "fsdp": False, "offload": False}
    assert lines[7:] == [
        "(host): weights, gradients and states are in the memory of the node",
        'ZeRO-1: run.parallelize(model, echelon.Strategy(shard=16, reshard="never"))',
        "fsdp: echelon submit --gpus 16 --time 02:00:00 --machine lumi --scale fsdp train.py",
    ]


def test_too_large_for_all(tmp_path: Path) -> None:
    """The ranks that it needs, in whole nodes, as a command that says so too."""
    done = echelon(tmp_path, f"{LUMI} --nodes 1 --parameters 70e9")
    said = done.stdout.splitlines()[-1]
    assert said.startswith("no strategy fits here; with 24 ranks one would fit: echelon plan --gpus 24 ")
    again = echelon(tmp_path, said.partition(": echelon ")[2])
    assert re.search(r"^fsdp .* fits$", again.stdout, re.M), again.stdout + again.stderr


def test_as_data(tmp_path: Path) -> None:
    """The same for programs; a device of another size is as asked, and without --parameters there is nothing."""
    words = f"{LUMI} --gpus 16 --parameters 6.74B --optimizer momentum --dtype bf16 --device-memory 24G --json"
    found = json.loads(echelon(tmp_path, words).stdout)["memory"]
    assert (found["num_parameters"], found["num_ranks"], found["device_bytes"]) == (6_740_000_000, 16, 24 * GIB)
    by_name = {row["strategy"]: row for row in found["strategies"]}
    assert by_name["fsdp"]["weights_bytes"] == 6_740_000_000 * 2 // 16
    assert (found["first"], by_name["data"]["fits"], found["least_ranks"]) == ("ZeRO-2", False, 2)
    assert "memory" not in json.loads(echelon(tmp_path, f"{LUMI} --gpus 16 --json").stdout)
