"""The time of a step on more devices: against published measurements, as properties, and with wrong inputs."""

import itertools
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.errors import UsageError
from echelon.estimate.speed.runs import STEP_BYTES, NetworkSpeed, PredictedSize, Refusal, SizeRun, of_machine
from echelon.estimate.speed.throughput import DOUBT_A_DOUBLING, FARTHEST, StepTimeLaw, fit
from echelon.machines.load import load_shipped

HERE = Path(__file__).parent
PUBLISHED = [json.loads(line) for line in (HERE / "published.jsonl").read_text().splitlines()]
RINGS = [json.loads(line) for line in (HERE / "rings.jsonl").read_text().splitlines()[1:]]
LUMI = next(series for series in PUBLISHED if "LUMI" in series["name"])


def seconds_of(series: dict[str, Any], number: int) -> float:
    """Return the time of a step, in which all devices (strong) or each device (weak) have one sample."""
    rate = float(series["rates"][str(number)])
    return 1 / rate if series["mode"] == "strong" else number / rate


def runs_of(series: dict[str, Any], *numbers: int) -> list[SizeRun]:
    return [
        SizeRun(num_devices=number, step_seconds=seconds_of(series, number), ranks_per_node=series["ranks_per_node"])
        for number in numbers
    ]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A published size beside what two smaller ones say of it."""

    factor: float
    ratio: float
    """The measured time by the least of the interval; at least 1 if it is covered."""
    is_covered: bool
    width: float
    """The greatest time of the interval by its least."""
    text: str


def held_out(series: dict[str, Any]) -> tuple[list[HeldOut], int]:
    """Return the answers for each pair of sizes and each larger one, and the number of refusals."""
    numbers = sorted(map(int, series["rates"]))
    answers, refusals = [], 0
    for smaller, larger, wanted in itertools.combinations(numbers, 3):
        model = fit(runs_of(series, smaller, larger), mode=series["mode"])
        size = model.at(wanted) if isinstance(model, StepTimeLaw) else model
        if isinstance(size, Refusal):
            assert size.reason
            assert size.repair
            refusals += 1
            continue
        span, truth = size.step_seconds, seconds_of(series, wanted)
        answers.append(
            HeldOut(
                factor=wanted / larger,
                ratio=truth / span.least,
                is_covered=span.least <= truth <= span.most,
                width=span.most / span.least,
                text=f"{smaller}, {larger} → {wanted}: {truth / span.least:.2f} of {span.most / span.least:.2f}",
            )
        )
    return answers, refusals


def model_of(runs: list[SizeRun], mode: str = "", network: "NetworkSpeed | None" = None) -> StepTimeLaw:
    model = fit(runs, mode=mode, network=network)
    assert isinstance(model, StepTimeLaw), model
    return model


def size_of(model: StepTimeLaw, number: int) -> PredictedSize:
    size = model.at(number)
    assert isinstance(size, PredictedSize), size
    return size


def test_published_sizes_are_covered_or_refused() -> None:
    """In at least 90 % of the published series, no pair of sizes gives an interval that misses a larger one."""
    missed = {}
    for series in PUBLISHED:
        answers, _ = held_out(series)
        if misses := [answer.text for answer in answers if not answer.is_covered]:
            missed[series["name"]] = misses
    assert len(missed) <= len(PUBLISHED) // 10, missed


def test_refusals_and_wide_intervals_are_not_the_rule() -> None:
    """Most of the questions are answered, and for twice the devices the bounds are some ten per cent apart."""
    answers, refusals = [], 0
    for series in PUBLISHED:
        of_series, refused = held_out(series)
        answers += of_series
        refusals += refused
    assert len(answers) > 2 * refusals
    assert statistics.median(answer.width for answer in answers if answer.factor == 2) < 1.25


def test_series_say_where_they_are_from() -> None:
    """Each has a source and at least three sizes, and none is there twice."""
    assert len({json.dumps(series["rates"]) for series in PUBLISHED}) == len(PUBLISHED)
    for series in PUBLISHED:
        assert "/" in series["source"]
        assert len(series["rates"]) >= 3


@pytest.mark.parametrize("number", [512, 1024, 2048])
def test_lumi_from_128_and_256_devices(number: int) -> None:
    """Two runs of a 175B model on LUMI give the larger ones within 3 %; in proportion, 2048 would be two thirds off."""
    size = size_of(model_of(runs_of(LUMI, 128, 256), "strong"), number)
    assert size.step_seconds.value == pytest.approx(seconds_of(LUMI, number), rel=0.03)
    in_proportion = float(LUMI["rates"]["128"]) * 2048 / 128
    assert in_proportion / float(LUMI["rates"]["2048"]) > 1.6


def test_more_devices_that_were_slower_are_refused() -> None:
    """Published: with tensor parallelism, four nodes train fewer tokens a second than two."""
    series = next(series for series in PUBLISHED if series["name"] == "Ultra-Scale Playbook, tensor parallel")
    assert float(series["rates"]["32"]) < float(series["rates"]["16"])
    refusal = fit(runs_of(series, 16, 32), mode="weak")
    assert isinstance(refusal, Refusal)
    assert "slower" in refusal.reason
    sooner = fit(runs_of(series, 8, 16), mode="weak")
    assert isinstance(sooner, Refusal)
    assert "communication rules" in sooner.reason


@pytest.mark.parametrize("row", RINGS, ids=lambda row: f"{row['ranks']}-{row['bytes'] >> 20}MiB")
def test_ring_bandwidth_follows_the_published_table(row: dict[str, Any]) -> None:
    """The law of one number meets all rings from 16 to 1024 GPUs and 16 MiB to 16 GiB within a factor of 1.5."""
    share = 1 / (1 + row["ranks"] * STEP_BYTES / row["bytes"])
    assert 1 / 1.5 < share / row["share"] < 1.5


def test_network_of_a_machine_meets_its_reference_rows() -> None:
    """LUMI's own bandwidths come back for their size and ranks; outside of the file nothing is known."""
    machine = load_shipped()["lumi"]
    network = of_machine(machine)
    assert network is not None
    assert network.ranks_per_node == 8
    for row in machine.references:
        best = network.inside_bytes_per_second if row.num_nodes == 1 else network.across_bytes_per_second
        ranks = row.num_nodes * row.ranks_per_node
        assert best is not None
        assert best / (1 + ranks * STEP_BYTES / row.num_bytes) == pytest.approx(row.bus_bytes_per_second)
    assert of_machine(machine, backend="gloo") is None
    assert of_machine(load_shipped()["puhti"]) is None


@given(st.integers(1, 1 << 36), st.integers(2, 4096), st.integers(2, 4096))
def test_all_reduce_takes_longer_with_more_bytes_and_ranks(num_bytes: int, ranks: int, more: int) -> None:
    network = NetworkSpeed(
        ranks_per_node=8, inside_bytes_per_second=1e11, across_bytes_per_second=5e10, source="a made-up network"
    )
    seconds = network.all_reduce_seconds(num_bytes, ranks)
    assert seconds is not None
    assert seconds > 0
    assert (network.all_reduce_seconds(num_bytes, ranks + more) or 0) >= seconds * (1 - 1e-12)
    assert (network.all_reduce_seconds(2 * num_bytes, ranks) or 0) > seconds
    assert network.all_reduce_seconds(num_bytes, 1) == 0


POWERS = st.integers(2, 10).map(lambda power: 2**power)


@given(POWERS, st.floats(0.01, 1e3), st.floats(0, 0.4), st.sampled_from([2, 4, 8, 16]))
def test_strong_law_finds_a_fixed_part(devices: int, divided: float, fixed_share: float, factor: int) -> None:
    """A step of a divided part and a fixed one is found again at any larger size."""
    fixed = fixed_share * divided / devices
    law = lambda number: divided / number + fixed  # noqa: E731
    runs = [SizeRun(num_devices=number, step_seconds=law(number)) for number in (devices, 2 * devices)]
    number = 2 * devices * factor
    size = size_of(model_of(runs, "strong"), number)
    assert size.step_seconds.value == pytest.approx(law(number))
    assert size.step_seconds.least <= law(number) <= size.step_seconds.most
    assert size.speedup.value == pytest.approx(law(devices) / law(number))


@given(POWERS, st.floats(0.01, 1e3), st.floats(0, 0.3), st.sampled_from([2, 3, 4, 7, 16]))
def test_weak_bounds_hold_constant_logarithmic_and_linear_growth(
    devices: int, compute: float, growth: float, factor: int
) -> None:
    """Communication that stays, grows with each doubling, or with each device is inside of the bounds."""
    runs = [
        SizeRun(num_devices=devices, step_seconds=compute, global_batch=devices),
        SizeRun(num_devices=2 * devices, step_seconds=compute * (1 + growth), global_batch=2 * devices),
    ]
    model = model_of(runs)
    assert model.mode == "weak"
    size = size_of(model, 2 * devices * factor)
    assert size.step_seconds.least <= compute * (1 + growth)
    assert size.step_seconds.most >= compute * (1 + growth * (2 * factor - 1)) * (1 - 1e-9)
    assert size.step_seconds.least <= size.step_seconds.value <= size.step_seconds.most
    assert size.samples_per_second is not None
    assert size.samples_per_second.value == pytest.approx(2 * devices * factor / size.step_seconds.value)


@given(
    st.sampled_from(["strong", "weak"]), POWERS, st.floats(0.01, 100), st.floats(0.72, 1.04), st.sampled_from([2, 4, 8])
)
def test_bounds_are_in_order_and_widen(mode: str, devices: int, seconds: float, share: float, factor: int) -> None:
    """Farther sizes, and runs that vary more, have wider bounds; speedup and efficiency follow from the time."""
    later = seconds / share / (2 if mode == "strong" else 1)
    runs = [SizeRun(num_devices=devices, step_seconds=seconds), SizeRun(num_devices=2 * devices, step_seconds=later)]
    model = model_of(runs, mode)
    near, far = size_of(model, 2 * devices * factor), size_of(model, 4 * devices * factor)
    noisy = size_of(
        model_of(
            [SizeRun(num_devices=run.num_devices, step_seconds=run.step_seconds, spread=0.1) for run in runs], mode
        ),
        2 * devices * factor,
    )
    for size in (near, far, noisy):
        for interval in (size.step_seconds, size.speedup, size.efficiency):
            assert 0 < interval.least <= interval.value <= interval.most
    assert near.step_seconds.most / near.step_seconds.least <= far.step_seconds.most / far.step_seconds.least
    assert noisy.step_seconds.least <= near.step_seconds.least
    assert near.step_seconds.most <= noisy.step_seconds.most
    assert near.efficiency.value * 2 * factor == pytest.approx(near.speedup.value)


def test_sizes_between_the_two_widen_the_bounds() -> None:
    """A third measured size that the law misses makes the interval wider; one on the law changes nothing."""
    runs = [SizeRun(num_devices=number, step_seconds=100 / number + 1, spread=0.01) for number in (4, 16)]
    alone = size_of(model_of(runs, "strong"), 64).step_seconds
    on_it = size_of(model_of([*runs, SizeRun(num_devices=8, step_seconds=100 / 8 + 1)], "strong"), 64).step_seconds
    off_it = size_of(model_of([*runs, SizeRun(num_devices=8, step_seconds=15)], "strong"), 64).step_seconds
    assert on_it == alone
    assert off_it.most > alone.most


def test_several_runs_of_a_size_give_its_spread() -> None:
    """Two runs that are 10 % apart count as one with 5 % to both sides."""
    runs = [SizeRun(num_devices=4, step_seconds=seconds) for seconds in (0.95, 1.05)]
    model = model_of([*runs, SizeRun(num_devices=8, step_seconds=0.6, spread=0.0)], "strong")
    assert model.spread == pytest.approx(0.05)
    assert model.smaller is not None
    assert model.smaller.step_seconds == pytest.approx(1.0)


def test_worth_counts_whole_multiples() -> None:
    """The devices that keep an efficiency are those whose estimate keeps it; the certain ones are fewer."""
    model = model_of(
        [SizeRun(num_devices=number, step_seconds=100 / number + 0.2, spread=0.0) for number in (8, 16)], "strong"
    )
    worths = [model.worth(share) for share in (0.9, 0.7, 0.5)]
    assert [worth.probably for worth in worths] == sorted(worth.probably for worth in worths)
    for worth in worths:
        assert worth.surely <= worth.probably
        assert size_of(model, worth.probably).efficiency.value >= worth.efficiency
        if not worth.is_limit:
            after = size_of(model, worth.probably + 16)
            assert after.efficiency.value < worth.efficiency
    assert not worths[0].is_limit
    assert worths[2].surely < worths[2].probably


def test_perfect_scaling_is_worth_all_that_is_estimated() -> None:
    """The answer then says that it ends where the estimate does."""
    runs = [SizeRun(num_devices=8, step_seconds=1.0), SizeRun(num_devices=16, step_seconds=0.5)]
    worth = model_of(runs, "strong").worth(0.5)
    assert (worth.probably, worth.is_limit) == (FARTHEST * 16, True)


NETWORK = NetworkSpeed(ranks_per_node=8, inside_bytes_per_second=1e11, across_bytes_per_second=5e10, source="made up")


def test_single_size_with_a_known_network_is_bounded_by_it() -> None:
    """All communication may hide behind the backward pass, or none; the estimate is between the two."""
    run = SizeRun(num_devices=8, step_seconds=0.5, ranks_per_node=8, gradient_bytes=4 * 10**9)
    size = size_of(model_of([run], "weak", NETWORK), 64)
    added = NETWORK.all_reduce_seconds(4 * 10**9, 64)
    assert added is not None
    assert size.step_seconds.least < 0.5
    assert size.step_seconds.most == pytest.approx((0.5 * 1.02 + added) * (1 + DOUBT_A_DOUBLING) ** 3)


def test_sizes_of_one_node_reach_several_only_with_the_network() -> None:
    """What two sizes within a node say ends at its border; with the machine's network it goes on."""
    runs = [SizeRun(num_devices=number, step_seconds=1.0, ranks_per_node=8, gradient_bytes=10**9) for number in (4, 8)]
    runs[1] = SizeRun(num_devices=8, step_seconds=1.02, ranks_per_node=8, gradient_bytes=10**9)
    refusal = model_of(runs, "weak").at(16)
    assert isinstance(refusal, Refusal)
    assert "several nodes" in refusal.reason
    with_it = size_of(model_of(runs, "weak", NETWORK), 16)
    assert with_it.step_seconds.most > 1.02 + (NETWORK.all_reduce_seconds(10**9, 16) or 0)
    blind = NetworkSpeed(ranks_per_node=8, inside_bytes_per_second=1e11, across_bytes_per_second=None, source="made up")
    assert isinstance(model_of(runs, "weak", blind).at(16), Refusal)


def two(seconds: tuple[float, float] = (1.0, 0.55), **fields: "tuple[Any, Any]") -> list[SizeRun]:
    return [
        SizeRun(
            num_devices=number, step_seconds=seconds[place], **{name: value[place] for name, value in fields.items()}
        )
        for place, number in enumerate((8, 16))
    ]


@pytest.mark.parametrize(
    ("runs", "mode", "word"),
    [
        (two()[:1], "weak", "network"),
        (two()[:1], "strong", "single size"),
        (two(), "", "do not tell whether"),
        (two((1.0, 1.1)), "strong", "slower"),
        (two((1.0, 2.1)), "weak", "slower"),
        (two((1.0, 0.45)), "strong", "cannot explain"),
        (two((1.0, 0.8)), "strong", "communication rules"),
        (two(global_batch=(64, 96)), "", "neither"),
        (two(global_batch=(64, 128)), "strong", "strong scaling needs the same global batch"),
        (two(global_batch=(64, 64)), "weak", "weak scaling needs the same batch for each device"),
        (two(precision=("bf16", "fp32")), "strong", "precision: bf16 and fp32"),
        (two(gradient_bytes=(10, 20)), "strong", "gradients in bytes: 10 and 20"),
        (two(ranks_per_node=(8, 4)), "strong", "devices per node: 4 and 8"),
        (
            [SizeRun(num_devices=1, step_seconds=1.0), SizeRun(num_devices=2, step_seconds=1.0)],
            "weak",
            "one link",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_known_is_refused(runs: list[SizeRun], mode: str, word: str) -> None:
    """Each refusal names what is wrong, and what to do instead."""
    refusal = fit(runs, mode=mode)
    assert isinstance(refusal, Refusal)
    assert word in refusal.reason
    assert refusal.repair


def test_a_dip_between_sizes_is_refused() -> None:
    """Of three sizes, the middle one was the fastest, although the largest is faster than the smallest."""
    times = {16: 1.0, 32: 0.55, 64: 0.6}
    runs = [SizeRun(num_devices=number, step_seconds=seconds) for number, seconds in times.items()]
    refusal = fit(runs, mode="strong")
    assert isinstance(refusal, Refusal)
    assert "64 devices did 0.92 times the work of 32" in refusal.reason


def test_far_sizes_and_empty_devices_are_refused() -> None:
    """No size is beyond 16 times the largest measured one, or has more devices than samples."""
    model = model_of(two(global_batch=(64, 64)))
    far, empty = model.at(16 * FARTHEST + 1), model.at(128)
    assert isinstance(far, Refusal)
    assert "16 times" in far.reason
    assert isinstance(empty, Refusal)
    assert "64 samples" in empty.reason


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"num_devices": 0}, "0 devices"),
        ({"num_devices": 10**400}, "at most|from 1 to"),
        ({"step_seconds": 0.0}, "must be from"),
        ({"step_seconds": float("nan")}, "must be from"),
        ({"step_seconds": float("inf")}, "must be from"),
        ({"global_batch": -1.0}, "global batch"),
        ({"ranks_per_node": 0}, "ranks per node"),
        ({"gradient_bytes": 0}, "gradients"),
        ({"spread": 1.0}, "spread"),
    ],
)
def test_numbers_that_nobody_measures_are_errors(fields: dict[str, Any], word: str) -> None:
    """Each gives one error that names the number."""
    with pytest.raises(UsageError, match=word):
        SizeRun(**{"num_devices": 8, "step_seconds": 1.0, **fields})


def test_wrong_questions_are_errors() -> None:
    """No run, an unknown kind of scaling, and a size that is not larger."""
    with pytest.raises(UsageError, match="no run"):
        fit([])
    with pytest.raises(UsageError, match="strong and weak"):
        fit(two(), mode="both")
    with pytest.raises(UsageError, match="not more than the 16"):
        model_of(two(), "strong").at(16)
