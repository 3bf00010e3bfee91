"""`echelon bench network`: real ranks over gloo, the factors of bus bandwidth, the reference, and wrong lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.trials.lines import bench, is_one_error, missing_on_page

from echelon.bandwidth import operations
from echelon.cli import bench_network
from echelon.monitor.page import plots
from echelon.trials import network


def test_operations_of_real_ranks_are_right(tmp_path: Path) -> None:
    """Three ranks: each operation gives what it should, sizes are shared equally, and the factors are nccl-tests'."""
    done = bench(tmp_path, "network", "-n", "3", "--sizes", "1000,64K", "--plot", "net", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["num_ranks"], result["backend"], result["reference"]) == (3, "gloo", None)
    assert list(result["curves"]) == list(bench_network.NAMES) == list(operations.OPERATIONS)
    factors = {"all-reduce": 4 / 3, "point-to-point": 1.0}
    for name, rows in result["curves"].items():
        assert [row["is_right"] for row in rows] == [True, True], name
        shared = name not in factors
        assert [row["bytes"] for row in rows] == ([996, 65532] if shared else [1000, 65536])
        for row in rows:
            bandwidth = row["algorithm_bytes_per_second"]
            assert bandwidth == pytest.approx(row["bytes"] / row["seconds"])
            assert row["bus_bytes_per_second"] == pytest.approx(bandwidth * factors.get(name, 2 / 3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.png", "net.svg"]
    assert result["rounds"] == [] and result["slow"] == {}


def result(**fields: Any) -> dict[str, Any]:
    row = {"bytes": 1 << 20, "seconds": 0.001, "algorithm_bytes_per_second": 1e9, "bus_bytes_per_second": 1e9}
    rows = [{**row, "is_right": True}]
    curves = {"all-reduce": rows, "all-to-all": [], "all-gather": [{**row, "is_right": False}]}
    base = {"num_ranks": 2, "nodes": [0], "backend": "gloo", "device": "cpu", "curves": curves, "sweep": rows}
    return {**base, "reference": None, **fields}


@pytest.mark.tier("all")
def test_reference_missing_operation_and_wrong_result_are_said(tmp_path: Path) -> None:
    usual = {"bytes_per_second": 4e9, "name": "what such nodes reach", "source": "a page", "least_share": 0.5}
    found = result(reference=usual)
    text = network.text(found)
    assert "all-to-all: gloo does not have it" in text
    assert "all-reduce reaches 25% of what such nodes reach: 4.00 GB/s (a page)" in text
    assert network.wrong(found) == ["all-gather of 1 MiB gave a wrong result"]
    files = plots.paths(str(tmp_path / "net"), usual="network")
    network.draw(found, files)
    assert "what such nodes reach (all-reduce)" in Path(files[0]).read_text()
    assert "no reference" in network.text(result())


WRONG = {
    ("train.py",): "takes no train.py", ("--operations", "all"): "the choices are all-reduce",
    ("--sizes", "1T"): "--sizes 1T", ("--sizes", "3"): "--sizes 3", ("--sizes", ""): "--sizes ''", ("-n", "0"): "-n 0",
    ("--machine", "nowhere"): "nowhere", ("--plot", "gone/x"): "not a folder",
}  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_line_is_one_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = bench(tmp_path, "network", *words)
    assert is_one_error(done, WRONG[words]), done


def test_page_names_each_option() -> None:
    assert missing_on_page((*bench_network.OPTIONS, *bench_network.SHARED), "How fast") == []
