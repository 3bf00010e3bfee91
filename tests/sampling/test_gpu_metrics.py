"""Tables of amdgpu's firmware are read in each version that has a fixed layout, and in no other."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.tables import STRUCTS, table

from echelon.hardware.amd import sampling as amd
from echelon.hardware.amd.sampling import EMPTY, LAYOUTS, Residencies

FEW = settings(max_examples=30, deadline=None)
OLD = [(1, number) for number in range(4)]
NEW = [(1, number) for number in range(4, 9)]
watts, degrees, clocks = st.integers(1, 2000), st.integers(1, 120), st.integers(1, 3000)
counts = st.integers(1, (1 << 64) - 2)


def test_sizes_are_those_of_the_kernel() -> None:
    """Sizes of x86_64 and aarch64, where C aligns alike."""
    assert {version: len(table(version)) for version in STRUCTS} == {
        (1, 0): 80, (1, 1): 96, (1, 2): 104, (1, 3): 120, (1, 4): 288, (1, 5): 360, (1, 6): 1664, (1, 7): 2208,
        (1, 8): 3360,
    }  # fmt: skip
    assert LAYOUTS.keys() == STRUCTS.keys()


@pytest.mark.parametrize("version", OLD)
@FEW
@given(power=watts, celsius=degrees, clock=clocks, energy=counts, percent=st.integers(0, 100))
def test_tables_up_to_an_mi250x(
    version: tuple[int, int], power: int, celsius: int, clock: int, energy: int, percent: int
) -> None:
    """The fields are those that were set; energy and throttling are read from version 1.3 on."""
    more: dict[str, Any] = {"energy_accumulator": energy, "indep_throttle_status": 1 << 36} if version == (1, 3) else {}
    found = amd.parse(
        table(version, average_socket_power=power, temperature_hotspot=celsius, current_gfxclk=clock,
              average_gfx_activity=percent, **more)
    )  # fmt: skip
    assert (found.version, found.power_watts, found.temperature_celsius) == (version, power, celsius)
    assert (found.clock_mhz, found.percent, found.residencies) == (clock, percent, None)
    assert (found.energy_count, found.status) == ((energy, 1 << 36) if more else (None, None))


@pytest.mark.parametrize("version", NEW)
@FEW
@given(power=watts, celsius=degrees, each=st.lists(clocks, min_size=1, max_size=8), energy=counts)
def test_tables_from_an_mi300_on(
    version: tuple[int, int], power: int, celsius: int, each: list[int], energy: int
) -> None:
    """The clock is the mean of the parts that the chip has; throttling is in counters from version 1.6 on."""
    counters = list(range(100, 106))
    names = [name for name, _ in STRUCTS[(1, 6)] if name == "accumulation_counter" or name.endswith("residency_acc")]
    more = dict(zip(names, counters, strict=True)) if version >= (1, 6) else {}
    found = amd.parse(
        table(version, curr_socket_power=power, temperature_hotspot=celsius, current_gfxclk=each,
              average_gfx_activity=50, energy_accumulator=energy, **more)
    )  # fmt: skip
    assert (found.power_watts, found.temperature_celsius, found.percent) == (power, celsius, 50)
    assert (found.clock_mhz, found.energy_count) == (round(sum(each) / len(each)), energy)
    assert (found.status, found.residencies) == (None, Residencies(*counters) if more else None)


@pytest.mark.parametrize("version", STRUCTS)
def test_what_the_driver_does_not_know_is_missing(version: tuple[int, int]) -> None:
    """Ones and, for what is never 0 on a device that runs, zeros."""
    assert amd.parse(table(version)) == EMPTY._replace(version=version)
    power = "curr_socket_power" if version in NEW else "average_socket_power"
    nothing: dict[str, Any] = {power: 0, "temperature_hotspot": 0, "energy_accumulator": 0}
    nothing["current_gfxclk"] = [0] * 8 if version in NEW else 0
    assert amd.parse(table(version, average_gfx_activity=0, **nothing)) == EMPTY._replace(version=version, percent=0)


@pytest.mark.parametrize("version", STRUCTS)
@FEW
@given(data=st.data())
def test_cut_tables_are_empty(version: tuple[int, int], data: st.DataObject) -> None:
    whole = table(version, average_gfx_activity=50)
    assert amd.parse(whole[: data.draw(st.integers(0, len(whole) - 1))]) == EMPTY


@FEW
@given(st.binary(max_size=4000))
def test_other_bytes_raise_nothing(content: bytes) -> None:
    amd.parse(content)


@pytest.mark.parametrize("head", [b"\x78\x00\x01\x09", b"\x78\x00\x02\x03", b"\x80\x00\x01\x03", b"\x78\x00\x03\x00"])
def test_other_versions_and_sizes_are_empty(head: bytes) -> None:
    assert amd.parse(head + table((1, 3), average_gfx_activity=50)[4:] + b"\xff" * 200) == EMPTY
