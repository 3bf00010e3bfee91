"""All-reduce measured by real ranks, a delayed one found, and what a sweep shows judged."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.checks import nodes
from tests.checks.shaped import CannotShape
from tests.checks.shaped import Network as Shaped
from tests.runs import ECHELON
from tests.tiers import some

from echelon.bandwidth.sweep import libraries, traffic
from echelon.checks import collectives
from echelon.checks.finding import Finding
from echelon.node.survey.nouns import Interface, NodeNetwork, Survey

MIB = 1 << 20
MINE = """
name = "mine"
title = "A workstation"
source = "its owner"
date = 2026-11-20
[[node_type]]
name = "desk"
chip = "A100"
vendor = "nvidia"
num_devices = 1
source = "its owner"
date = 2026-11-20
[[reference]]
node_type = "desk"
num_nodes = 1
ranks_per_node = 2
backend = "gloo"
num_bytes = 1048576
bus_bytes_per_second = 90000000000000
source = "a page that dreams"
date = 2026-11-20
"""
DELAYED = """
import os
import sys
import time

from echelon.bandwidth import sweep

reduce_once = sweep.reduce_once


def late(values, group):
    if int(os.environ["GROUP_RANK"]) == {bad}:
        time.sleep(0.25)
    reduce_once(values, group)


sweep.reduce_once = late
sweep.main(sys.argv[1:], os.environ)
"""


def delayed(folder: Path, bad: int) -> tuple[str, ...]:
    """Return the sweep as a program of whose ranks one is late in each all-reduce."""
    program = folder / "delayed.py"
    program.write_text(DELAYED.format(bad=bad))
    return (sys.executable, str(program))


def run_nodes(
    folder: Path, num_nodes: int, program: tuple[str, ...], slow_above: float = 0.0, network: Shaped | None = None
) -> dict[str, Any]:
    """Sweep over nodes that are processes of this machine, each in a network of its own if there is one."""
    out = folder / "out.json"
    port = free_port() if network is None else 29500  # nobody else is in there
    size = 64 << 10 if network is None else 256 << 10
    environ = {
        "PATH": os.environ["PATH"], "WORLD_SIZE": str(num_nodes), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": network.address(0) if network else "127.0.0.1", "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "eth0" if network else "lo",
    }  # fmt: skip
    ranks = [
        subprocess.Popen(
            [*(network.inside(rank) if network else ()), *program, str(out), f"4096,{size}", "0.2", "0.4",
             f"{slow_above:g}"],
            env={**environ, "RANK": str(rank), "GROUP_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(num_nodes)
    ]  # fmt: skip
    said = [rank.communicate(timeout=250)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * num_nodes, said
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def blamed(found: dict[str, Any], num_nodes: int) -> list[str]:
    """Return the nodes that are errors in the report, which is made of what was measured."""
    assert all(row["is_right"] for row in found["sweep"])
    assert found["slow"]["num_rounds"] <= (num_nodes - 1).bit_length() + 1
    surveys = nodes.several(Survey("n"), num_nodes)
    findings = judged(found, names=[each.node for each in surveys])
    return [each.node for each in findings if each.severity == "error"]


@pytest.mark.tier("all")
@pytest.mark.parametrize(("num_nodes", "bad"), some([(3, 2), (2, 0)], 2))
def test_a_delayed_rank_is_found(tmp_path: Path, num_nodes: int, bad: int) -> None:
    """Real ranks of which one sleeps in every all-reduce: that one, no other, where it is known what is usual."""
    found = run_nodes(tmp_path, num_nodes, delayed(tmp_path, bad), slow_above=0.05)
    assert blamed(found, num_nodes) == [f"nid{5000 + bad:06d}"], found["rounds"]


@pytest.mark.tier("all")
def test_a_node_that_was_slow_once_is_not_blamed(tmp_path: Path) -> None:
    """Other work held a node up during its first measurement; the second one counts."""
    num_nodes, bad = 3, 2
    program = delayed(tmp_path, bad)
    sleeps = "        time.sleep(0.25)\n"
    at_first = "        calls.extend([] if group is None else [group])\n        if 0 < len(calls) < 16:\n    " + sleeps
    text = Path(program[1]).read_text().replace(sleeps, at_first).replace("def late(", "calls = []\n\n\ndef late(")
    Path(program[1]).write_text(text)
    found = run_nodes(tmp_path, num_nodes, program, slow_above=0.05)
    assert blamed(found, num_nodes) == [], found["rounds"]


@pytest.mark.tier("all")
def test_a_node_on_a_slow_link_is_found(tmp_path: Path) -> None:
    """Five nodes on one switch, of which the last has a link of 20 Mbit/s: found by comparison, and no other is.

    Where nobody can make namespaces and shapers, that node's rank sleeps instead.
    """
    num_nodes, bad = 5, 4
    program = (sys.executable, "-m", "echelon.bandwidth.sweep")
    try:
        with Shaped(num_nodes) as network:
            network.slow_down(bad)
            found = run_nodes(tmp_path, num_nodes, program, network=network)
    except CannotShape as error:
        if os.environ.get("CI") == "true" and error.has_tools:
            raise
        found = run_nodes(tmp_path, num_nodes, delayed(tmp_path, bad))
    assert blamed(found, num_nodes) == [f"nid{5000 + bad:06d}"], found["rounds"]


def test_the_command_measures(tmp_path: Path) -> None:
    """`echelon check --collectives` measures with ranks of its own, compares with the machine's, keeps what is good."""
    (tmp_path / "mine.toml").write_text(MINE)
    done = subprocess.run(
        [*ECHELON, "check", "--fast", "--collectives", "-n", "2", "--machine", "mine", "--keep", "--json"],
        cwd=tmp_path, env={**os.environ, "ECHELON_MACHINES": "mine.toml", "XDG_CONFIG_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = json.loads(done.stdout)
    rows = found["collectives"]["sweep"]
    assert [row["bytes"] for row in rows] == [4096, 256 << 10, 4 << 20]
    for row in rows:  # of two ranks both bandwidths are one: 2 (n - 1) / n is 1
        assert row["bus_bytes_per_second"] == pytest.approx(row["bytes"] / row["seconds"])
    (slow,) = [each for each in found["findings"] if each["check"] == "collectives"]
    assert slow["severity"] == "warning"
    assert "0% of what 1 such node of mine reach, 90000.00 GB/s" in slow["message"]
    assert slow["source"] == "a page that dreams, 2026-11-20"
    assert "echelon keeps no reference: it is not good: bus bandwidth" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def sweep(**changes: Any) -> dict[str, Any]:
    """Return what a good sweep over four LUMI nodes looks like."""
    row = {"bytes": 128 * MIB, "seconds": 0.003, "algorithm_bytes_per_second": 44e9, "bus_bytes_per_second": 85e9}
    return {
        "format": 1, "device": "AMD Instinct MI250X", "backend": "nccl", "num_ranks": 32, "nodes": [0, 1, 2, 3],
        "sweep": [{**row, "is_right": True}], "rounds": [],
        "slow": {"bad": [], "undecided": [], "between": [], "num_rounds": 1},
        "libraries": {"0": ["/opt/librccl-net.so"]}, "traffic": {"0": {"hsn0": 900 * MIB}}, **changes,
    }  # fmt: skip


def judged(result: dict[str, Any], *lines: str, names: list[str] | None = None, **options: Any) -> list[Finding]:
    good = nodes.BY_NAME["LUMI, a whole node"]
    interfaces = tuple(Interface(f"hsn{index}", "slingshot", True, 200, "10.1.0.1") for index in range(4))
    network = NodeNetwork(interfaces=interfaces)
    surveys = [Survey(name, network=network) for name in names or ("nid1", "nid2", "nid3", "nid4")]
    return collectives.look(result, lines, surveys, nodes.wanted(good, num_nodes=len(surveys)), **options)


CXI = "nid1:1:2 [0] NCCL INFO NET/OFI Selected Provider is cxi (found 4 nics)"
GDR = "nid1:1:2 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA"
SOCKET = "nid1:1:2 [0] NCCL INFO NET/Socket : Using [0]nmn0:10.120.116.65<0> [1]hsn0:10.253.6.170<0>"


def test_a_good_sweep_is_let_pass() -> None:
    """The plugin's provider, RDMA and the reference's bandwidth: nothing to say."""
    assert judged(sweep(), CXI, GDR, usual=collectives.asked(85e9)) == []


@pytest.mark.parametrize(
    ("changes", "lines", "severity", "says"),
    [
        ({"libraries": {"0": []}}, [SOCKET], "error", "use Socket nmn0, not the fast network (hsn0, hsn1"),
        ({}, [CXI], "note", "pass through the host's memory"),
        ({"traffic": {"0": {"nmn0": 900 * MIB}}}, [CXI, GDR], "warning", "900 MiB went over nmn0"),
        (
            {"slow": {"bad": [2], "undecided": [], "between": [], "num_rounds": 2},
             "rounds": [{"groups": [{"nodes": [2, 3], "seconds": 0.2, "is_slow": True},
                                    {"nodes": [0, 1], "seconds": 0.01, "is_slow": False}]}]},
            [CXI, GDR], "error", "it is slow in every group: 200.0 ms, but other nodes take 10.0 ms",
        ),
        ({"slow": {"bad": [], "undecided": [], "between": [[0, 1]], "num_rounds": 3}}, [CXI, GDR], "warning",
         "slow between nid1 and nid2"),
        ({"slow": {"bad": [], "undecided": [0, 1], "between": [], "num_rounds": 3}}, [CXI, GDR], "warning",
         "slow with every partner, but no partner is known to be good: nid[1-2]"),
    ],
)  # fmt: skip
def test_what_a_sweep_shows(changes: dict[str, Any], lines: list[str], severity: str, says: str) -> None:
    """Each sign of a slow network is named, with a remedy."""
    findings = judged(sweep(**changes), *lines)
    assert [each.severity for each in findings] == [severity]
    assert says in findings[0].message
    assert findings[0].remedy


def test_a_wrong_sum_is_an_error() -> None:
    """A collective that adds up wrongly is worse than a slow one."""
    row = {**sweep()["sweep"][0], "is_right": False}
    assert [each.severity for each in judged(sweep(sweep=[row]), CXI, GDR)] == ["error"]


def test_less_than_the_reference() -> None:
    """The published case: 5.4 GB/s where 123 are usual."""
    row = {**sweep()["sweep"][0], "bus_bytes_per_second": 5.4e9}
    findings = judged(sweep(sweep=[row]), CXI, GDR, usual=collectives.asked(123e9))
    assert findings[0].message == "bus bandwidth 5.40 GB/s, 4% of the reference, 123.00 GB/s"


def test_mapped_libraries_and_counters_are_read(tmp_path: Path) -> None:
    """The process's own maps, and the counters of both kinds of interfaces."""
    maps = tmp_path / "maps"
    maps.write_text(
        "7f2c4d200000-7f2c4d3c5000 r-xp 00000000 08:02 135522 /opt/lib/libfabric.so.1.18.1\n"
        "7f2c4d200000-7f2c4d3c5000 r--p 00000000 08:02 135522 /opt/lib/libfabric.so.1.18.1\n"
        "7f2c4d200000-7f2c4d3c5000 r--p 00000000 08:02 135523 /opt/my libs/librccl-net.so (deleted)\n"
        "7f2c4d200000-7f2c4d3c5000 r--p 00000000 08:02 135523 /usr/lib/libc.so.6\n"
        "7ffd4d200000-7ffd4d3c5000 rw-p 00000000 00:00 0 [stack]\n"
    )
    assert libraries(str(maps)) == ["/opt/lib/libfabric.so.1.18.1", "/opt/my libs/librccl-net.so (deleted)"]
    assert libraries(str(tmp_path / "nothing")) == []
    statistics = tmp_path / "sys/class/net/hsn0/statistics"
    statistics.mkdir(parents=True)
    (statistics / "tx_bytes").write_text("4711\n")
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "port_xmit_data").write_text("100\n")
    assert traffic(str(tmp_path)) == {"hsn0": 4711, "mlx5_0": 400}
