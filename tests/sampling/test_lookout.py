"""The process beside the ranks: it samples a generated node, and the run ends though it hangs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.sampling import nvml_stand_in
from tests.sampling.nodes import GIB, Files, lumi_addresses
from tests.sampling.tables import table

from echelon.launch import package

AT_ROOT = Path(__file__).parent / "at_root.py"
UNTIL = "until {}; do sleep 0.1; done"


@pytest.fixture
def busy_lumi(lumi: Files) -> Files:
    """A node of LUMI-G at work: the first die of each package is busy, the second idle."""
    for number, address in enumerate(lumi_addresses()):
        energy = {} if number % 2 else {"average_socket_power": 300, "energy_accumulator": 1 << 32}
        metrics = table((1, 3), average_gfx_activity=0 if number % 2 else 90, temperature_hotspot=60, **energy)
        lumi.amd(address, gpu_metrics=metrics, mem_info_vram_used=62 * GIB, mem_info_vram_total=64 * GIB)
    for index in range(4):
        for name in ("rx_bytes", "tx_bytes"):
            lumi.write(f"sys/class/net/hsn{index}/statistics/{name}", 1 << 40)
    lumi.host(idle=100, busy=100)
    return lumi


class Child:
    """A lookout as an agent starts it."""

    def __init__(self, folder: Path, root: Path, **asked: bool) -> None:
        package.write(str(folder / "node.pyz"))
        (folder / "agent.json").write_text(json.dumps({"addresses": [], "looks": {"root": str(root), **asked}}))
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "node.pyz", "lookout", ".", "nid005000"],
            cwd=folder, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout
        self.pipe = self.process.stdout

    def hear(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.pipe.readline())
        return told


def test_a_lookout_tells_of_its_node_until_nobody_hears(tmp_path: Path, busy_lumi: Files) -> None:
    """First the survey, then sample after sample; the energy and the number of seconds rise."""
    child = Child(tmp_path, busy_lumi.root)
    try:
        assert child.hear()["kind"] == "survey"
        first, second = child.hear(), child.hear()
        assert first["kind"] == second["kind"] == "load"
        assert [row["device"] for row in first["devices"]] == list(range(8))
        assert [row["most"] for row in second["devices"]] == [90, 0] * 4
        assert second["host"]["seconds"] > first["host"]["seconds"] > 1
        assert second["host"]["cpus"] == 56
        assert [nic["nic"] for nic in second["host"]["nics"]] == ["hsn0", "hsn1", "hsn2", "hsn3"]
        child.pipe.close()
        assert child.process.wait(60) == 0
    finally:
        child.process.kill()
        child.process.wait()


def test_a_lookout_may_only_sample(tmp_path: Path, busy_lumi: Files) -> None:
    """After a check before the start nobody waits for the survey."""
    child = Child(tmp_path, busy_lumi.root, is_told=False)
    try:
        assert child.hear()["kind"] == "load"
    finally:
        child.process.kill()
        child.process.wait()
        child.pipe.close()


def test_a_lookout_that_can_see_nothing_ends(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    child = Child(tmp_path, tmp_path / "empty")
    try:
        assert child.hear()["kind"] == "survey"
        assert (child.pipe.readline(), child.process.wait(60)) == (b"", 0)
    finally:
        child.process.kill()
        child.process.wait()


def run(folder: Path, root: Path, program: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run a program of the shell beside a lookout that sees another node."""
    words = ["run", "--run-dir", "run", "-n", "1", "--timeout", "2m", "--", "sh", "-c", program]
    return subprocess.run(
        [sys.executable, str(AT_ROOT), str(root), *words],
        cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def test_samples_of_a_run_come_into_its_files(tmp_path: Path, busy_lumi: Files) -> None:
    """The load is written while the run goes on; at its end, memory that was almost full is said and written down."""
    program = UNTIL.format('grep -q energy_joules "$ECHELON_RUN_DIR/samples.jsonl"')
    done = run(tmp_path, busy_lumi.root, program, CUDA_VISIBLE_DEVICES="0,1")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    [rows] = next(line["load"] for line in lines if "load" in line).values()
    assert [(row["device"], row["mean"]) for row in rows] == [(0, 90.0), (1, 0.0)]
    assert [row.get("power_watts") for row in rows] == [300, None]
    assert next(iter(json.loads((tmp_path / "run/report.json").read_text())["load"].values()))[0]["most"] == 90
    [line] = [line for line in done.stderr.splitlines() if "of the memory" in line]
    assert "note: 2 of 2 devices used more than 95% of the memory: 0-1 on " in line
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    [fact] = [event for event in events if event.get("fact") == "memory almost full"]
    assert fact["message"] in line and "62 GiB of 64 GiB" in fact["evidence"]


@pytest.mark.skipif(not nvml_stand_in.has_compiler(), reason="no C compiler")
def test_a_call_that_hangs_keeps_no_run(tmp_path: Path, dgx_tree: Path) -> None:
    """The driver does not answer: the run ends as without it, and the process that waits is gone."""
    (tmp_path / "lib").mkdir()
    nvml_stand_in.compiled(tmp_path / "lib", {"00000000:07:00.0": {"percent": 1}})
    mark = tmp_path / "mark"
    environ = {"CUDA_VISIBLE_DEVICES": "0", "LD_LIBRARY_PATH": str(tmp_path / "lib"), "STAND_IN_HANGS": str(mark)}
    done = run(tmp_path, dgx_tree, UNTIL.format(f"test -s {mark}"), **environ)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert (report["exit_code"], report.get("load")) == (0, None)
    deadline = time.monotonic() + 30
    while is_alive(int(mark.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(int(mark.read_text()))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
