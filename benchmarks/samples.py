"""Measure what sampling a node costs: `python -m benchmarks.samples`, from the repository root.

A run sleeps, and its lookout samples a generated node of 8 devices and 4 NICs once a second, as on a real one. Its CPU
time and memory are the kernel's figures. How long one sample takes is measured in a process of its own, in the same
seconds. A generated tree answers from the page cache; the firmware of a real device is slower. Example:

    python -m benchmarks.samples --seconds 30 --rounds 1
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tests.sampling import nvml_stand_in
from tests.sampling.nodes import GIB, Files, lumi_addresses, survey
from tests.sampling.tables import table
from tests.topology import trees

from benchmarks import residents
from benchmarks.figures import Figure, Row, Spread, Target, at_most, markdown
from benchmarks.meter import BenchmarkError, clean_environ
from echelon.node.survey import lookout
from echelon.node.survey.sampling.sampler import Sampler

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATIENCE_SECONDS = 60.0  # until a busy machine has started a lookout
BEGIN_SECONDS = 6.0  # until its survey is done, and its sampler has begun
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One round."""

    core_percent: float
    lookout_rss: float
    lookout_pss: float
    agent_pss: float
    """Of agent, guard and lookout, in MB as all sizes here."""
    agent_rss: float
    file_bytes_per_second: float
    sample_ms: float
    sample_ms_99: float
    sample_cpu_ms_99: float
    """Without waiting for a core, as the lookout has a low priority."""


def main() -> int:
    """Measure the nodes and print the table."""
    if sys.argv[1:2] == ["--sample"]:
        return _sample(sys.argv[2], int(sys.argv[3]))
    options = _options()
    nodes = {"lumi_g: sysfs": _lumi, "dgx_a100: NVML (a stand-in)": _dgx}
    if not nvml_stand_in.has_compiler():
        del nodes["dgx_a100: NVML (a stand-in)"]
    rows = [_row(title, build, options) for title, build in nodes.items()]
    load, _, _ = os.getloadavg()
    print(
        f"Measured on {datetime.date.today()} by `python -m benchmarks.samples`: {os.cpu_count()} cores, load average "
        f"{load:.1f}, Linux {platform.release()}, Python {platform.python_version()}, echelon "
        f"{metadata.version('echelon')}; median of {options.rounds} with least and greatest value, "
        f"{options.seconds} s each.\n\n{markdown(rows)}"
    )
    return 0 if all(figure.is_reached for row in rows for figure in row.figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.samples", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=100, metavar="S", help="of each round; 100 by default")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="3 by default")
    return parser.parse_args()


def _row(title: str, build: Callable[[Path], dict[str, str]], options: argparse.Namespace) -> Row:
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        environ = {**clean_environ(), "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", **build(Path(folder))}
        environ["PYTHONPATH"] = os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")])
        rounds = []
        for number in range(options.rounds):
            print(f"measuring {title}, round {number + 1} …", file=sys.stderr)
            rounds.append(_measure(Path(folder), number, environ, options.seconds))

    def figure(what: str, name: str, unit: str, target: Target) -> Figure:
        return Figure(what=what, unit=unit, ours=Spread(tuple(getattr(each, name) for each in rounds)), target=target)

    free = at_most(math.inf)
    return Row(
        title=title,
        figures=(
            figure("lookout: CPU time", "core_percent", "% of a core", at_most(0.5)),
            figure("lookout: memory, shared pages divided (PSS)", "lookout_pss", "MB", free),
            figure("lookout: memory, resident (RSS)", "lookout_rss", "MB", free),
            figure("agent, guard and lookout: PSS", "agent_pss", "MB", at_most(30)),
            figure("agent, guard and lookout: RSS", "agent_rss", "MB", free),
            figure("one sample: median", "sample_ms", "ms", free),
            figure("one sample: 99 % take at most", "sample_ms_99", "ms", at_most(5)),
            figure("one sample: 99 % take at most, CPU time", "sample_cpu_ms_99", "ms", free),
            figure("written to samples.jsonl", "file_bytes_per_second", "bytes/s", at_most(2048)),
        ),
    )


def _measure(folder: Path, number: int, environ: dict[str, str], seconds: int) -> Measured:
    """Run beside a sleeping rank, and take samples in another process."""
    run = f"run-{number}"
    rank = ["sleep", str(seconds + 2 * PATIENCE_SECONDS)]
    at_root = [sys.executable, "-m", "tests.sampling.at_root", str(folder / "node")]
    with (
        subprocess.Popen(
            [*at_root, "run", "--run-dir", run, "-n", "1", "--", *rank],
            cwd=folder,
            env=environ,
            stderr=subprocess.DEVNULL,
        ) as process,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.samples", "--sample", str(folder / "node"), str(seconds)],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        ) as sampling,
    ):
        try:
            return _watch(process, sampling, folder / run, seconds)
        finally:
            sampling.kill()
            process.terminate()


def _watch(process: subprocess.Popen[bytes], sampling: subprocess.Popen[str], run: Path, seconds: int) -> Measured:
    pid = _lookout_of(process.pid)
    time.sleep(BEGIN_SECONDS)
    cpu, began, size = residents.own_cpu_seconds(pid), time.monotonic(), _size(run)
    time.sleep(seconds)
    passed = time.monotonic() - began
    cpu, size = residents.own_cpu_seconds(pid) - cpu, _size(run) - size
    ours = residents.of_node(process.pid)
    out, _ = sampling.communicate()
    times = json.loads(out)
    return Measured(
        core_percent=100 * cpu / passed,
        lookout_rss=ours[-1].rss_bytes / MEGABYTE,
        lookout_pss=ours[-1].pss_bytes / MEGABYTE,
        agent_pss=sum(each.pss_bytes for each in ours) / MEGABYTE,
        agent_rss=sum(each.rss_bytes for each in ours) / MEGABYTE,
        file_bytes_per_second=size / passed,
        sample_ms=statistics.median(times["wall"]) * 1e3,
        sample_ms_99=_quantile_99(times["wall"]) * 1e3,
        sample_cpu_ms_99=_quantile_99(times["cpu"]) * 1e3,
    )


def _lookout_of(supervisor: int) -> int:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return residents.of_node(supervisor)[-1].pid
        except BenchmarkError:
            if time.monotonic() > deadline:
                raise
        time.sleep(1.0)


def _quantile_99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def _size(run: Path) -> int:
    path = run / "samples.jsonl"
    return path.stat().st_size if path.exists() else 0  # its first line comes with the first pulse of the agent


def _sample(root: str, number: int) -> int:
    """Take samples once a second as a lookout does, with its messages, and print how long each took."""
    os.nice(lookout.NICENESS)
    sampler = Sampler(root, survey(Path(root)), os.environ, time.monotonic())
    times: dict[str, list[float]] = {"wall": [], "cpu": []}
    for index in range(number):
        time.sleep(lookout.LOOK_SECONDS)
        began, cpu = time.perf_counter(), time.process_time()
        sampler.look(time.monotonic())
        if index % 2:
            json.dumps(sampler.message(time.monotonic()))
        times["wall"].append(time.perf_counter() - began)
        times["cpu"].append(time.process_time() - cpu)
    print(json.dumps(times))
    return 0


def _lumi(folder: Path) -> dict[str, str]:
    """Build a node of LUMI-G at work; return the variables that it needs."""
    files = Files(trees.lumi_g(folder / "node"))
    for number, address in enumerate(lumi_addresses()):
        package = {"average_socket_power": 0 if number % 2 else 480, "energy_accumulator": 0 if number % 2 else 1 << 40}
        files.amd(
            address,
            gpu_metrics=table(
                (1, 3), average_gfx_activity=98, temperature_hotspot=71, current_gfxclk=1650, indep_throttle_status=1,
                **package,
            ),
            mem_info_vram_used=55 * GIB, mem_info_vram_total=64 * GIB, pp_dpm_sclk="0: 500Mhz\n1: 1700Mhz *",
        )  # fmt: skip
    _network(files, [f"hsn{index}" for index in range(4)])
    return {}


def _dgx(folder: Path) -> dict[str, str]:
    """Build a DGX A100 and a library that knows its cards, with InfiniBand ports that count."""
    files = Files(trees.dgx_a100(folder / "node"))
    (folder / "lib").mkdir()
    card = {"percent": 97, "used": 33 * GIB, "total": 40 * GIB, "milliwatts": 391_000, "millijoules": 10**12,
            "clock": 1320, "clock_most": 1410, "celsius": 62, "reasons": 4}  # fmt: skip
    cards = {f"00000000:{bus}:00.0": card for bus in ("07", "0f", "47", "4e", "87", "90", "b7", "bd")}
    nvml_stand_in.compiled(folder / "lib", cards)
    _network(files, [f"ib{index}" for index in range(4)])
    return {"LD_LIBRARY_PATH": str(folder / "lib")}


def _network(files: Files, interfaces: list[str]) -> None:
    for name in interfaces:
        files.write(f"sys/class/net/{name}/statistics/rx_bytes", 1 << 50)
        files.write(f"sys/class/net/{name}/statistics/tx_bytes", 1 << 50)
    files.host(idle=10_000_000, busy=90_000_000, cpus=tuple(range(256)))


if __name__ == "__main__":
    sys.exit(main())
