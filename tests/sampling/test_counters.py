"""Counters wrap and start anew, and energy adds up to what was drawn."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from echelon.hardware.reading import NOTHING, Reading, risen
from echelon.node.survey.sampling.sampler import LONGEST_GAP_SECONDS, Energy

PATIENT = settings(deadline=None)
widths = st.sampled_from((32, 56, 64))


@PATIENT
@given(bits=widths, start=st.integers(0), rise=st.integers(0))
def test_a_rise_is_found_across_a_wrap(bits: int, start: int, rise: int) -> None:
    """Each rise of less than half of the range, from each start."""
    start, rise = start % (1 << bits), rise % (1 << (bits - 1))
    assert risen(start, (start + rise) % (1 << bits), bits) == rise


@PATIENT
@given(bits=widths, data=st.data())
def test_a_counter_that_was_set_back_is_not_known(bits: int, data: st.DataObject) -> None:
    """A driver that is loaded again counts from 0: that is no wrap, unless it was near the end."""
    before = data.draw(st.integers(1, 1 << (bits - 1)))
    assert risen(before, data.draw(st.integers(0, before - 1)), bits) is None


def test_missing_counters_have_not_risen() -> None:
    assert risen(None, 5) is None
    assert risen(5, None) is None


@PATIENT
@given(rises=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30), start=st.integers(0, (1 << 64) - 1))
def test_counted_energy_is_exact(rises: list[int], start: int) -> None:
    """Also when the counter wraps; the power is not asked."""
    energy, count = Energy(), start
    energy.note(0.0, Reading(energy_count=count, energy_unit_joules=0.5, power_watts=1.0))
    for second, rise in enumerate(rises, 1):
        count = (count + rise) % (1 << 64)
        energy.note(float(second), Reading(energy_count=count, energy_unit_joules=0.5, power_watts=1.0))
    is_counter = any(rises)  # one that stands still while the device draws power is none
    assert energy.joules == (sum(rises) * 0.5 if is_counter else len(rises))
    assert energy.source == ("counter" if is_counter else "power")


@PATIENT
@given(watts=st.floats(1, 2000), seconds=st.lists(st.floats(0.5, LONGEST_GAP_SECONDS - 1), min_size=1, max_size=20))
def test_constant_power_is_integrated(watts: float, seconds: list[float]) -> None:
    energy, now = Energy(), 0.0
    energy.note(now, Reading(power_watts=watts))
    for each in seconds:
        now += each
        energy.note(now, Reading(power_watts=watts))
    assert math.isclose(energy.joules, watts * now, rel_tol=1e-9)
    assert energy.source == "power"


def test_power_stands_in_for_a_counter_that_was_set_back() -> None:
    """The source of the sum is said; a gap without a counter stays a gap."""
    energy = Energy()
    energy.note(0.0, Reading(energy_count=1000, power_watts=100.0))
    energy.note(1.0, Reading(energy_count=1100, power_watts=100.0))
    energy.note(2.0, Reading(energy_count=5, power_watts=300.0))
    assert (energy.joules, energy.source) == (100.0 + 200.0, "counter and power")
    energy.note(3.0, NOTHING)
    energy.note(4.0, Reading(power_watts=300.0))
    energy.note(4.0 + LONGEST_GAP_SECONDS + 1, Reading(power_watts=300.0))
    assert energy.joules == 300.0


def test_energy_without_a_source_is_not_known() -> None:
    energy = Energy()
    energy.note(0.0, NOTHING)
    energy.note(1.0, NOTHING)
    assert energy.source == ""
