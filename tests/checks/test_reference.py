"""What a sweep is compared with: the published row of a machine that is like it, or what was kept."""

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.checks import nodes
from tests.checks.test_collectives import CXI, GDR, MIB, judged, sweep
from tests.checks.test_take import check

from echelon.checks import collectives
from echelon.checks.finding import Wanted
from echelon.machines.load import find
from echelon.machines.page import page
from echelon.machines.write import keep

LUMI = nodes.machine_named("lumi")
DAY = date(2026, 11, 21)


def wanted() -> Wanted:
    found = nodes.wanted(nodes.BY_NAME["LUMI, a whole node"], num_nodes=2)
    return replace(found, references=LUMI.references)


def measured(
    num_nodes: int, gigabytes_per_second: float = 100, *, num_ranks: int = 0, **changes: Any
) -> dict[str, Any]:
    row = {**sweep()["sweep"][0], "bus_bytes_per_second": gigabytes_per_second * 1e9}
    return sweep(nodes=list(range(num_nodes)), num_ranks=num_ranks or 8 * num_nodes, **{"sweep": [row], **changes})


@pytest.mark.parametrize(
    ("result", "gigabytes_per_second"),
    [
        (measured(1), 125),
        (measured(2), 85),
        (measured(3), 85),  # a ring's bandwidth hardly depends on how many nodes it has
        (measured(64), 85),
        (measured(2, num_ranks=8), None),  # half of the devices
        (measured(2, backend="gloo"), None),
        (measured(2, sweep=[{**sweep()["sweep"][0], "bytes": 16 * MIB}]), None),  # too small to be as fast
    ],
)
def test_the_row_that_is_like_the_sweep(result: dict[str, Any], gigabytes_per_second: float | None) -> None:
    """LUMI's published figures count for its whole nodes, the library and a size that is no smaller."""
    found = collectives.usual_of(result, wanted())
    assert (found.bytes_per_second / 1e9 if found else None) == gigabytes_per_second


def test_unknown_machines_have_none() -> None:
    """Without a machine there is nothing to compare with."""
    assert collectives.usual_of(measured(2), Wanted(num_nodes=2)) is None


@pytest.mark.parametrize(("num_nodes", "fine", "slow"), [(1, 70, 60), (2, 43, 42), (4, 43, 5.4)])
def test_less_than_half_is_said_with_both_values(num_nodes: int, fine: float, slow: float) -> None:
    """Half of what is published is let pass; less is a warning with both values and the source."""
    names = [f"nid{number}" for number in range(num_nodes)]
    usual = collectives.usual_of(measured(num_nodes), wanted())
    assert usual
    assert judged(measured(num_nodes, fine), CXI, GDR, names=names, usual=usual) == []
    (finding,) = judged(measured(num_nodes, slow), CXI, GDR, names=names, usual=usual)
    assert finding.severity == "warning"
    assert f"bus bandwidth {slow:.2f} GB/s" in finding.message
    assert f"of what {min(num_nodes, 2)} such node{'s' if num_nodes > 1 else ''} of lumi reach, " in finding.message
    assert f"{usual.bytes_per_second / 1e9:.2f} GB/s" in finding.message
    assert "lumi-reframe-tests" in finding.source


def test_what_is_kept_is_compared_with(tmp_path: Path) -> None:
    """A kept row is laid over the machine: in place of one for as many nodes, beside those for others."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    for num_nodes, speed in ((2, 90), (4, 80), (8, 70), (4, 81)):
        path = keep(find("lumi", environ), collectives.kept(measured(num_nodes, speed), "mi250x", DAY), environ)
    assert [path] == [str(each) for each in (tmp_path / "echelon/machines").iterdir()]
    machine = find("lumi", environ)
    rows = {row.num_nodes: row for row in machine.references}
    assert {count: row.bus_bytes_per_second // 10**9 for count, row in rows.items()} == {1: 125, 2: 90, 4: 81, 8: 70}
    assert machine.partitions == LUMI.partitions
    assert "4 nodes of mi250x, 8 ranks each: all-reduce of 128 MiB by nccl, bus bandwidth 81 GB/s" in page(machine)
    usual = collectives.usual_of(measured(4), replace(wanted(), references=machine.references))
    assert usual and usual.bytes_per_second == 81e9 and usual.source == f"{collectives.KEPT}, {DAY}"


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        (("--keep",), "--keep needs --collectives, which measures the bandwidth", "--collectives --keep"),
        (("--keep", "--collectives"), "--keep needs a known machine", "echelon machines learn"),
    ],
)
def test_what_cannot_be_kept(tmp_path: Path, words: tuple[str, ...], says: str, hint: str) -> None:
    """One line says why, before anything is measured."""
    done = check(*words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and hint in done.stderr
