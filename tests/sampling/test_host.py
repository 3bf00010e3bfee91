"""Cores, memory and network of a node, from counters that wrap, in files that may be missing."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.sampling.nodes import GIB, Files

from echelon.node.survey.sampling.host import HostReader

MOVED = ("in_bytes_per_second", "out_bytes_per_second")
CXI = ("hni_sts_rx_ok_octets", "hni_sts_tx_ok_octets")
PORT = ("port_rcv_data", "port_xmit_data")
NET = ("rx_bytes", "tx_bytes")


def count(files: Files, folder: str, names: "tuple[str, str]", received: int, sent: int, after: str = "") -> None:
    for name, number in zip(names, (received, sent), strict=True):
        files.write(f"{folder}/{name}", f"{number}{after}")


def rates(row: "dict[str, Any]") -> "dict[str, tuple[int, int]]":
    return {nic["nic"]: (nic[MOVED[0]], nic[MOVED[1]]) for nic in row.get("nics", [])}


def test_cores_of_the_run_count(tmp_path: Path) -> None:
    """Cores of other jobs do not; waiting for a disk is idle time."""
    files = Files(tmp_path)
    files.host(idle=1000, busy=0)
    reader = HostReader(str(tmp_path), (3, 4), 0.0)
    files.write(
        "proc/stat",
        "cpu  9 9 9 9\ncpu3 150 0 0 1050 0 0 0 0 77 77\ncpu4 0 0 0 1100 100 0 0 0 0 0\ncpu5 999 0 0 0 0 0\nintr 1",
    )
    reader.look()
    assert reader.row(2.0) == {
        "seconds": 2.0, "cpus": 2, "cpu_percent": 37.5, "memory_used_bytes": GIB, "memory_used_most_bytes": GIB,
        "memory_bytes": 4 * GIB,
    }  # fmt: skip
    assert "cpu_percent" not in reader.row(4.0)  # no tick since


def test_memory_has_its_most(tmp_path: Path) -> None:
    files = Files(tmp_path)
    reader = HostReader(str(tmp_path), (0,), 0.0)
    for available in (3, 1, 2):
        files.host(idle=1, busy=1, available_kib=available << 20)
        reader.look()
    row = reader.row(1.0)
    assert (row["memory_used_bytes"], row["memory_used_most_bytes"]) == (2 * GIB, 3 * GIB)


@pytest.mark.parametrize("meminfo", ["", "MemTotal: x kB", "MemTotal: 5 kB\nMemFree: 4 kB", "MemAvailable: 3 kB"])
def test_missing_is_missing(tmp_path: Path, meminfo: str) -> None:
    files = Files(tmp_path)
    files.write("proc/meminfo", meminfo)
    files.write("proc/stat", "cpu 1 2\ncpu0")
    reader = HostReader(str(tmp_path), (0, 1), 0.0)
    reader.look()
    row = reader.row(1.0)
    row.pop("memory_bytes", None)
    assert row == {"seconds": 1.0}


def test_node_without_files_is_not_sampled(tmp_path: Path) -> None:
    reader = HostReader(str(tmp_path), (0,), 0.0)
    reader.look()
    assert reader.sees_nothing


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=st.integers(0, (1 << 56) - 1), received=st.integers(0, 1 << 50), sent=st.integers(0, 1 << 50))
def test_slingshot_counts_all_traffic_across_a_wrap(lumi: Files, start: int, received: int, sent: int) -> None:
    """The card's own counters, of 56 bits with a time behind them; the interface's have only IP."""
    folder = "sys/class/cxi/cxi0/device/telemetry"
    for index in range(4):
        count(lumi, f"sys/class/net/hsn{index}/statistics", NET, 5, 5)
    count(lumi, folder, CXI, start, start, "@1700000000.123456789")
    reader = HostReader(str(lumi.root), (), 0.0)
    count(lumi, folder, CXI, (start + received) % (1 << 56), (start + sent) % (1 << 56), "@1700000002.123456789")
    count(lumi, "sys/class/net/hsn1/statistics", NET, 2005, 5)
    found = rates(reader.row(2.0))
    assert found == {
        "hsn0": (round(received / 2), round(sent / 2)), "hsn1": (1000, 0), "hsn2": (0, 0), "hsn3": (0, 0),
    }  # fmt: skip


def test_infiniband_counts_words_of_all_ports(dgx: Files) -> None:
    """Its ports count all traffic in words of four bytes; the interface over it is not counted twice."""
    port, interface = "sys/class/infiniband/mlx5_0/ports/1/counters", "sys/class/net/ib0/statistics"
    count(dgx, port, PORT, (1 << 64) - 10, 0)
    count(dgx, interface, NET, 0, 0)
    count(dgx, "sys/class/net/ib1/statistics", NET, 0, 0)
    reader = HostReader(str(dgx.root), (), 0.0)
    count(dgx, port, PORT, 90, 50)
    count(dgx, interface, NET, 7, 7)
    count(dgx, "sys/class/net/ib1/statistics", NET, 30, 10)  # a card whose ports have no counters
    assert rates(reader.row(10.0)) == {"mlx5_0": (40, 20), "mlx5_1": (3, 1)}


@pytest.mark.parametrize(("model", "rate"), [("MT4119", (500, 0)), ("BCM57508", (100, 0)), ("", (100, 0))])
def test_rdma_of_mellanox_ethernet_is_added(dgx: Files, model: str, rate: "tuple[int, int]") -> None:
    """Its interface does not count RDMA; what the ports of others count is not known."""
    port, interface = "sys/class/infiniband/mlx5_8/ports/1/counters", "sys/class/net/enp97s0f0/statistics"
    dgx.write("sys/class/infiniband/mlx5_8/hca_type", model)
    count(dgx, port, PORT, 0, 0)
    count(dgx, interface, NET, 0, 0)
    reader = HostReader(str(dgx.root), (), 0.0)
    count(dgx, port, PORT, 100, 0)
    count(dgx, interface, NET, 100, 0)
    assert rates(reader.row(1.0)) == {"enp97s0f0": rate}


def test_interfaces_that_are_down_or_start_anew_are_left_out(lumi: Files) -> None:
    for index in range(4):
        count(lumi, f"sys/class/net/hsn{index}/statistics", NET, 1000, 1000)
    lumi.write("sys/class/net/hsn2/operstate", "down")
    reader = HostReader(str(lumi.root), (), 0.0)
    count(lumi, "sys/class/net/hsn0/statistics", NET, 10, 2000)
    (lumi.root / "sys/class/net/hsn1/statistics/rx_bytes").write_text("")
    told = {nic["nic"]: sorted(nic.keys() - {"nic"}) for nic in reader.row(1.0)["nics"]}
    assert told == {"hsn0": ["out_bytes_per_second"], "hsn1": ["out_bytes_per_second"], "hsn3": sorted(MOVED)}
    count(lumi, "sys/class/net/hsn0/statistics", NET, 30, 2000)
    assert rates({"nics": [nic for nic in reader.row(1.5)["nics"] if nic["nic"] == "hsn0"]}) == {"hsn0": (40, 0)}


def test_this_machine_can_be_sampled() -> None:
    """Whatever it has, a row of it is JSON and small."""
    began = time.monotonic()
    reader = HostReader("/", (0,), began)
    reader.look()
    row = reader.row(began + 1)
    assert row["memory_used_bytes"] <= row["memory_bytes"]
    assert len(json.dumps(row)) < 2048
