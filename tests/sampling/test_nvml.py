"""NVIDIA's devices are read through their library, and through nvidia-smi only where there is none."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checks.test_take import nvidia_smi
from tests.sampling import nvml_stand_in
from tests.sampling.nodes import GIB, device
from tests.sampling.nvml_stand_in import FIELDS, MISSING

from echelon.hardware import vendors
from echelon.hardware.nvidia import nvml
from echelon.hardware.nvidia.nvml import Nvml
from echelon.hardware.nvidia.smi import LOOK_SECONDS, NvidiaSmi
from echelon.hardware.reading import Reading
from echelon.node.survey.nouns import Cores, Survey, SurveyedDevice, SurveyedDevices
from echelon.node.survey.sampling.sampler import Sampler

H100 = {
    "percent": 97, "used": 60 * GIB, "total": 80 * GIB, "milliwatts": 612_345, "millijoules": 10**12, "clock": 1755,
    "clock_most": 1980, "celsius": 64, "reasons": 0x4,
}  # fmt: skip
CARDS = {"00000000:C1:00.0": H100, "00000000:07:00.0": {**H100, "percent": 0, "reasons": 0x1}}
KINDS = [
    pytest.param("compiled", marks=pytest.mark.skipif(not nvml_stand_in.has_compiler(), reason="no C compiler")),
    "interpreted",
]


def nvidia(number: int, pci: str, uuid: str = "") -> SurveyedDevice:
    return device(number, vendor="nvidia", model="NVIDIA H100", pci=pci, uuid=uuid, chip=number)


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_is_read(tmp_path: Path, kind: str) -> None:
    """Cards are found by their PCI addresses; the library counts them in another order."""
    library = Nvml(nvml_stand_in.load(kind, tmp_path, CARDS))
    busy, idle = library.reader("0000:c1:00.0", "GPU-1"), library.reader("0000:07:00.0", "GPU-0")
    assert busy and idle
    assert library.reader("0000:99:00.0", "") is None
    assert busy.read() == Reading(
        percent=97, memory_used_bytes=60 * GIB, memory_bytes=80 * GIB, power_watts=612.345, energy_count=10**12,
        energy_unit_joules=1e-3, clock_mhz=1755, clock_most_mhz=1980, temperature_celsius=64, throttled=("power cap",),
    )  # fmt: skip
    assert (idle.read().percent, idle.read().throttled) == (0, ())


DYNAMIC = {
    "percent": "percent", "milliwatts": "power_watts", "millijoules": "energy_count", "clock": "clock_mhz",
    "celsius": "temperature_celsius", "reasons": "throttled",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_card_does_not_support_is_missing(tmp_path: Path, kind: str) -> None:
    """Each function alone decides about its value."""
    library = nvml_stand_in.load(kind, tmp_path, {"00000000:C1:00.0": H100})
    reader = Nvml(library).reader("0000:c1:00.0", "")
    assert reader
    for field, name in DYNAMIC.items():
        number = FIELDS.index(field)
        value = nvml_stand_in.ctypes.c_ulonglong
        library.set(0, number, value(MISSING) if kind == "compiled" else MISSING)
        missing = {key for key, each in reader.read()._asdict().items() if each is None}
        assert missing == {name}
        library.set(0, number, value(H100[field]) if kind == "compiled" else H100[field])
    nothing = Nvml(nvml_stand_in.load("interpreted", tmp_path, {"00000000:C1:00.0": {}})).reader("0000:c1:00.0", "")
    assert nothing and nothing.read().is_empty


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_a_card_has_memory_alone(tmp_path: Path, kind: str) -> None:
    """MIG: load, power and energy are not those of the part; its row stands under the host, as it has no load."""
    parted = {**H100, "percent": MISSING, "part_used": 3 * GIB, "part_total": 10 * GIB}
    library = Nvml(nvml_stand_in.load(kind, tmp_path, {"00000000:C1:00.0": parted}))
    part, unknown = library.reader("0000:c1:00.0", "MIG-0"), library.reader("0000:c1:00.0", "MIG-7")
    assert part and unknown
    found = part.read()
    assert (found.percent, found.power_watts, found.energy_count) == (None, None, None)
    assert (found.memory_used_bytes, found.memory_bytes, found.temperature_celsius) == (3 * GIB, 10 * GIB, 64)
    assert unknown.read().memory_bytes is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_library_has_another_name_for_throttling(tmp_path: Path, kind: str) -> None:
    reader = Nvml(nvml_stand_in.load(kind, tmp_path, {"00000000:C1:00.0": H100}, is_old=True)).reader(
        "0000:c1:00.0", ""
    )
    assert reader and reader.read().throttled == ("power cap",)


@settings(deadline=None)
@given(st.integers(0, (1 << 64) - 1))
def test_reasons_that_hold_no_clock_down_are_left_out(bits: int) -> None:
    """Idle, clocks that were set, and the display; "hardware" only where no more is known."""
    words = nvml.reasons(bits)
    assert ("thermal" in words) == bool(bits & 0x60)
    assert ("power cap" in words) == bool(bits & 0x4)
    assert ("power brake" in words) == bool(bits & 0x80)
    assert ("hardware" in words) == (bits & 0xC8 == 0x8)


def survey(*devices: SurveyedDevice) -> Survey:
    return Survey("node", devices=SurveyedDevices(devices), cores=Cores(allowed="0"))


def test_sampler_uses_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Device numbers are those of the topology; energy is what the counter rose by; a hidden device is left out."""
    library = nvml_stand_in.Interpreted({**CARDS, "00000000:E1:00.0": H100})
    monkeypatch.setattr(nvml, "load", lambda: Nvml(library))
    devices = [
        nvidia(0, "0000:07:00.0"),
        nvidia(1, "0000:c1:00.0"),
        nvidia(2, "0000:e1:00.0")._replace(is_visible=False),
    ]
    samples = Sampler(str(tmp_path), survey(*devices), {}, 0.0)
    for second in range(1, 21):
        library.set(0, FIELDS.index("millijoules"), 10**12 + second * 600_000)
        library.set(0, FIELDS.index("percent"), 50 if second > 10 else 100)
        library.set(0, FIELDS.index("reasons"), 0x20 if second > 15 else 0)
        samples.look(float(second))
    message = samples.message(20.0)
    idle, busy = message["devices"]
    assert (idle["device"], idle["mean"], idle["most"], idle["looks"]) == (0, 0.0, 0, 3)
    assert (busy["device"], busy["energy_joules"], busy["energy_from"], busy["now"]) == (1, 12_000, "counter", 50)
    assert busy["mean"] == round((97 + 10 * 100 + 10 * 50) / 21, 1)
    assert busy["throttled"] == ["thermal"]
    assert busy["throttled_percent"] == {"power cap": round(100 / 21, 1), "thermal": round(500 / 21, 1)}
    assert (busy["throttled_clock_mhz"], message["host"].get("devices")) == (1755, None)


def test_parts_of_a_card_stand_under_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parted = {**H100, "percent": MISSING, "part_used": 3 * GIB, "part_total": 10 * GIB}
    library = nvml_stand_in.Interpreted({"00000000:C1:00.0": parted})
    monkeypatch.setattr(nvml, "load", lambda: Nvml(library))
    message = Sampler(str(tmp_path), survey(nvidia(0, "0000:c1:00.0", "MIG-0")), {}, 0.0).message(0.0)
    [row] = message["host"]["devices"]
    assert message["devices"] == []
    assert (row["memory_used_bytes"], row["memory_bytes"]) == (3 * GIB, 10 * GIB)
    assert not {"mean", "most", "looks", "now", "power_watts", "energy_joules"} & row.keys()


@pytest.mark.skipif(not nvml_stand_in.has_compiler(), reason="no C compiler")
def test_the_library_is_opened_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a driver is not loaded the library has no cards, and nvidia-smi would have none either."""
    monkeypatch.setattr(nvml, "LIBRARY", str(nvml_stand_in.compiled(tmp_path, CARDS)))
    found = nvml.load()
    assert found and found.reader("0000:c1:00.0", "")
    monkeypatch.setenv("STAND_IN_DRIVER_NOT_LOADED", "1")
    unloaded = nvml.load()
    assert unloaded and unloaded.reader("0000:c1:00.0", "") is None
    monkeypatch.setattr(nvml, "LIBRARY", str(tmp_path / "libmissing.so"))
    assert nvml.load() is None


LINES = (
    "00000000:C1:00.0, 97, 61440, 81559, 612.05, 1755, 1980, 64\\n"
    "00000000:07:00.0, [N/A], 5, 81559, [N/A], 345, 1980, 30\\n"
)


def test_nvidia_smi_stands_in_for_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a process for each look, so it looks every ten seconds."""
    environ = nvidia_smi(tmp_path, f'echo looked >> {tmp_path}/looks; printf "{LINES}"')
    now = 100.0
    devices = [nvidia(0, "0000:07:00.0"), nvidia(1, "0000:c1:00.0"), nvidia(2, "0000:c1:00.0", "MIG-1")]
    tool = NvidiaSmi(devices, environ, clock=lambda: now)
    found = tool.read()
    assert found[1] == Reading(
        percent=97, memory_used_bytes=61440 << 20, memory_bytes=81559 << 20, power_watts=612.05, clock_mhz=1755,
        clock_most_mhz=1980, temperature_celsius=64,
    )  # fmt: skip
    assert (found[0].percent, found[0].power_watts, found[0].temperature_celsius) == (None, None, 30)
    assert sorted(found) == [0, 1]
    now += LOOK_SECONDS - 0.1
    assert tool.read() == {}
    now += 0.2
    assert sorted(tool.read()) == [0, 1]
    assert (tmp_path / "looks").read_text() == "looked\n" * 2
    monkeypatch.setattr(nvml, "LIBRARY", str(tmp_path / "libmissing.so"))
    read = vendors.NVIDIA.readings("/", devices, environ)
    assert sorted(read()) == [0, 1]


@pytest.mark.parametrize("body", ["exit 9", "echo one, two", "echo"])
def test_a_tool_that_fails_has_no_devices(tmp_path: Path, body: str) -> None:
    environ = nvidia_smi(tmp_path, body)
    assert NvidiaSmi([nvidia(0, "0000:c1:00.0")], environ).read() == {}


def test_a_tool_that_hangs_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_words: Any) -> Any:
        raise TimeoutError

    monkeypatch.setattr("echelon.hardware.nvidia.smi.ask_rows", hang)
    assert NvidiaSmi([nvidia(0, "0000:c1:00.0")], {}).read() == {}
