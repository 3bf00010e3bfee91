"""AMD's devices are read from sysfs: a package's power once, and what is missing is left out."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.nodes import GIB, Files, device, lumi_addresses, survey
from tests.sampling.tables import table
from tests.topology import trees

from echelon.hardware.amd.sampling import AmdReader
from echelon.hardware.reading import NOTHING, Reading
from echelon.node.survey.sampling.sampler import Sampler


def rows(root: Path, seconds: int = 1, **changes: Any) -> dict[int, dict[str, Any]]:
    """Return the rows of a node after some samples."""
    sampler = Sampler(str(root), survey(root), {}, 0.0)
    for second in range(1, seconds + 1):
        sampler.look(float(second))
    message = sampler.message(float(seconds))
    return {row["device"]: row for row in message["devices"]}


def test_mi250x_counts_power_once_per_package(lumi: Files) -> None:
    """The first die has the package's sensors, the second shows 0; both have all else."""
    for number, address in enumerate(lumi_addresses()):
        energy = {"energy_accumulator": 1 << 32, "average_socket_power": 400}
        nothing = {"energy_accumulator": 0, "average_socket_power": 0}
        lumi.amd(
            address,
            gpu_metrics=table(
                (1, 3), average_gfx_activity=10 * number, temperature_hotspot=60 + number, current_gfxclk=1700,
                indep_throttle_status=0, **(nothing if number % 2 else energy)
            ),
            mem_info_vram_used=number * GIB, mem_info_vram_total=64 * GIB, pp_dpm_sclk="0: 500Mhz\n1: 1700Mhz *",
        )  # fmt: skip
    found = rows(lumi.root)
    assert sorted(found) == list(range(8))
    assert [number for number, row in found.items() if "power_watts" in row] == [0, 2, 4, 6]
    assert sum(row.get("power_watts", 0) for row in found.values()) == 4 * 400
    assert found[1] == {
        "device": 1, "looks": 1, "mean": 10.0, "most": 10, "now": 10, "memory_used_bytes": GIB,
        "memory_used_most_bytes": GIB, "memory_bytes": 64 * GIB, "clock_mhz": 1700, "clock_most_mhz": 1700,
        "temperature_celsius": 61, "throttled": [],
    }  # fmt: skip
    assert (found[0]["energy_joules"], found[0]["energy_from"]) == (400, "power")  # the counter stands still
    assert "energy_joules" not in found[1]


def test_dies_that_show_the_same_sensor_count_once(lumi: Files) -> None:
    """Drivers differ in what the second die shows; without links between dies, nobody knows which are one package."""
    for address in lumi_addresses():
        lumi.amd(address, gpu_busy_percent=50, hwmon__hwmon7__power1_average=300_000_000)
    found = rows(lumi.root, seconds=10)
    assert [number for number, row in found.items() if "power_watts" in row] == [0, 2, 4, 6]
    assert {row.get("energy_joules") for row in found.values()} == {None, 3000}
    assert found[0]["energy_from"] == "power"


def test_a_job_with_only_the_first_die_has_the_power_of_the_package(tmp_path: Path) -> None:
    lumi = Files(trees.lumi_g(tmp_path, cpus="17-23", devices=(2, 3)))
    for address in lumi_addresses():
        lumi.amd(address, gpu_busy_percent=50, hwmon__hwmon7__power1_average=300_000_000)
    assert {number: row.get("power_watts") for number, row in rows(lumi.root).items()} == {2: 300.0, 3: None}


def test_energy_counter_of_an_mi250x_has_the_unit_of_its_firmware(lumi: Files) -> None:
    """1/65536 J, across the counter's end; the counter of another chip with the same table has an unknown unit."""
    address = lumi_addresses()[0]
    counts = [(1 << 64) - (3 << 16), (1 << 64) - (1 << 16), 5 << 16]
    lumi.amd(address, gpu_metrics=table((1, 3), average_gfx_activity=1, energy_accumulator=counts[0]))
    sampler = Sampler(str(lumi.root), survey(lumi.root), {}, 0.0)
    for second, count in enumerate(counts[1:], 1):
        lumi.amd(address, gpu_metrics=table((1, 3), average_gfx_activity=1, energy_accumulator=count))
        sampler.look(float(second))
    assert sampler.message(2.0)["devices"][0]["energy_joules"] == 8
    other = AmdReader(str(lumi.root), device(model="gfx1030", pci=address))
    assert other.read().energy_count is None


@pytest.mark.parametrize("version", [(1, number) for number in range(4, 9)])
def test_mi300x(tmp_path: Path, version: tuple[int, int]) -> None:
    """Power in watts, the mean clock of its eight parts, and the energy counter."""
    files, chip = Files(tmp_path), device()
    files.amd(
        chip.pci,
        gpu_metrics=table(
            version, curr_socket_power=640, average_gfx_activity=99, temperature_hotspot=71,
            current_gfxclk=[2100] * 4 + [2000] * 4, energy_accumulator=1 << 40,
        ),
        mem_info_vram_used=100 * GIB, mem_info_vram_total=192 * GIB, pp_dpm_sclk="S: 132Mhz\n0: 500Mhz\n1: 2100Mhz *",
        gpu_busy_percent=5, hwmon__hwmon0__power1_input=1,
    )  # fmt: skip
    assert AmdReader(str(tmp_path), chip).read() == Reading(
        percent=99, memory_used_bytes=100 * GIB, memory_bytes=192 * GIB, power_watts=640, energy_count=1 << 40,
        energy_unit_joules=2**-16, clock_mhz=2050, clock_most_mhz=2100, temperature_celsius=71, throttled=None,
    )  # fmt: skip


def residencies(cycles: int, **held: int) -> dict[str, int]:
    names = ("prochot", "ppt", "socket_thm", "vr_thm", "hbm_thm")
    return {"accumulation_counter": cycles, **{f"{name}_residency_acc": held.get(name, 0) for name in names}}


@pytest.mark.parametrize(
    ("before", "after", "throttled"),
    [
        (residencies(1000), residencies(2000), ()),
        (residencies(1000), residencies(2000, ppt=499), ()),
        (residencies(1000), residencies(2000, ppt=500), ("power cap",)),
        (residencies(1000, hbm_thm=100), residencies(2000, hbm_thm=900, ppt=1000), ("thermal", "power cap")),
        (residencies((1 << 32) - 500, vr_thm=(1 << 32) - 300), residencies(500, vr_thm=500), ("thermal",)),
        (residencies(1000, ppt=500), residencies(1000, ppt=500), None),  # the firmware is slower than we are
    ],
)
def test_throttling_of_an_mi300x(
    tmp_path: Path, before: dict[str, int], after: dict[str, int], throttled: "tuple[str, ...] | None"
) -> None:
    """A reason counts if it held for half of the firmware's cycles since the last sample, also across a wrap."""
    files, chip = Files(tmp_path), device()
    files.amd(chip.pci, gpu_metrics=table((1, 6), **before))
    reader = AmdReader(str(tmp_path), chip)
    assert reader.read().throttled is None
    files.amd(chip.pci, gpu_metrics=table((1, 6), **after))
    assert reader.read().throttled == throttled


@pytest.mark.parametrize(
    ("bit", "throttled"),
    [(None, ()), (0, ("power cap",)), (16, ("power cap",)), (23, ("power cap",)), (32, ("thermal",)),
     (47, ("thermal",)), (56, ()), (24, ())],
)  # fmt: skip
def test_throttling_of_an_mi250x(tmp_path: Path, bit: "int | None", throttled: tuple[str, ...]) -> None:
    """The bits of amdgpu_smu.h: power and current from 0 on, temperatures from 32 on."""
    files, die = Files(tmp_path), device(model="gfx90a")
    files.amd(die.pci, gpu_metrics=table((1, 3), indep_throttle_status=1 << bit if bit is not None else 0))
    assert AmdReader(str(tmp_path), die).read().throttled == throttled


def test_files_stand_in_for_the_table(tmp_path: Path) -> None:
    """Without a table, or with one that is cut off, the other files of the driver are read."""
    files, chip = Files(tmp_path), device()
    files.amd(
        chip.pci, gpu_metrics=table((1, 3), average_gfx_activity=1)[:60], gpu_busy_percent=42,
        mem_info_vram_used=GIB, hwmon__hwmon4__power1_input=212_500_000, hwmon__hwmon4__energy1_input=7_000_000,
        hwmon__hwmon4__temp1_input=40_000, hwmon__hwmon4__temp1_label="edge", hwmon__hwmon4__temp2_input=51_400,
        hwmon__hwmon4__temp2_label="junction", pp_dpm_sclk="0: 500Mhz\n1: 1319Mhz *\n2: 1700Mhz",
    )  # fmt: skip
    assert AmdReader(str(tmp_path), chip._replace(memory_bytes=64 * GIB)).read() == Reading(
        percent=42, memory_used_bytes=GIB, memory_bytes=64 * GIB, power_watts=212.5, energy_count=7_000_000,
        energy_unit_joules=1e-6, clock_mhz=1319, clock_most_mhz=1700, temperature_celsius=51,
    )  # fmt: skip


FILES = {
    "gpu_busy_percent": ("percent", 7), "mem_info_vram_used": ("memory_used_bytes", 5),
    "hwmon__hwmon0__power1_average": ("power_watts", 5_000_000),
    "hwmon__hwmon0__temp1_input": ("temperature_celsius", 5000), "hwmon__hwmon0__freq1_input": ("clock_mhz", 5_000_000),
}  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(present=st.sets(st.sampled_from(sorted(FILES))))
def test_missing_is_missing(tmp_path_factory: pytest.TempPathFactory, present: set[str]) -> None:
    """Each file alone decides about its value; nothing becomes 0."""
    root = tmp_path_factory.mktemp("amd")
    files, chip = Files(root), device()
    files.amd(chip.pci, **{name: FILES[name][1] for name in present})
    found = AmdReader(str(root), chip).read()
    told = {name for name, value in found._asdict().items() if value is not None} - {"energy_unit_joules"}
    assert told == {FILES[name][0] for name in present}
    assert found.is_empty == (not present)


@pytest.mark.parametrize("content", ["", "busy", "-1", "101", "1e3", "²"])
def test_a_load_that_is_none_is_missing(tmp_path: Path, content: str) -> None:
    files, chip = Files(tmp_path), device()
    files.amd(chip.pci, gpu_busy_percent=content, hwmon__hwmon0__power1_average=0)
    assert AmdReader(str(tmp_path), chip).read() == NOTHING._replace(energy_unit_joules=1e-6)


def test_a_device_that_disappears_comes_back(tmp_path: Path) -> None:
    """A file that was missing at first is read as soon as it is there."""
    files, chip = Files(tmp_path), device()
    reader = AmdReader(str(tmp_path), chip)
    assert reader.read().percent is None
    files.amd(chip.pci, gpu_busy_percent=3)
    assert reader.read().percent == 3


def test_no_process_is_started(lumi: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where a tool of the vendor is at hand."""

    def refuse(*words: object, **_more: object) -> None:
        raise AssertionError(words)

    for name in ("fork", "posix_spawn", "posix_spawnp"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    for address in lumi_addresses():
        lumi.amd(address, gpu_busy_percent=50)
    assert len(rows(lumi.root, seconds=3)) == 8


def test_a_message_is_small(lumi: Files) -> None:
    """Eight devices with all values, four NICs, after a year: at most 2 KB for each second of a file line's wait."""
    for address in lumi_addresses():
        lumi.amd(
            address,
            gpu_metrics=table(
                (1, 3), average_gfx_activity=100, temperature_hotspot=105, current_gfxclk=1700,
                average_socket_power=560, energy_accumulator=1 << 60, indep_throttle_status=1 << 32 | 1,
            ),
            mem_info_vram_used=63 * GIB, mem_info_vram_total=64 * GIB - 1, pp_dpm_sclk="1: 1700Mhz *",
        )  # fmt: skip
    for index in range(4):
        for name in ("rx_bytes", "tx_bytes"):
            lumi.write(f"sys/class/net/hsn{index}/statistics/{name}", 1)
    lumi.host(idle=5, busy=5)
    sampler = Sampler(str(lumi.root), survey(lumi.root), {}, 0.0)
    for index in range(4):
        for name in ("rx_bytes", "tx_bytes"):
            lumi.write(f"sys/class/net/hsn{index}/statistics/{name}", 50 * 10**9)
    lumi.host(idle=7, busy=12)
    sampler.look(2.0)
    message = sampler.message(2.0)
    assert len(message["devices"]) == 8 and len(message["host"]["nics"]) == 4
    assert {"power_watts", "energy_joules", "throttled_percent"} <= message["devices"][0].keys()
    line = json.dumps({"load": {"nid005000": message["devices"]}, "host": {"nid005000": message["host"]}})
    assert len(line) <= 2 * 2048
