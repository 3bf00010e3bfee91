"""The verdict: on generated traces whose truth is known, on real trainings, and as the command prints it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.monitor.traces.made import COMM_STREAM, DEVICE, WORKER, Made, real
from tests.runs import ECHELON

from echelon.monitor.traces import report, verdict
from echelon.monitor.traces.doings import Intervals, bridged, common, union, without

pairs = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted).map(tuple), max_size=8)


def instants(several: Any) -> "set[int]":
    return {instant for begin, end in several for instant in range(int(begin), int(end))}


@given(pairs, pairs, pairs)
def test_intervals_are_sets_of_times(one: Any, other: Any, third: Any) -> None:
    """Union, difference and common part are those of the sets of instants; a bridge fills short gaps alone."""
    first, second, last = (union(Intervals(*each)) for each in (one, other, third))
    assert instants(union(first, second)) == instants(one) | instants(other)
    assert instants(without(first, second, last)) == instants(one) - instants(other) - instants(third)
    assert instants(common(first, second)) == instants(one) & instants(other)
    assert first.total() == len(instants(one))
    gaps = instants(bridged(first, 3)) - instants(one)
    assert all(begin - 3 <= gap < begin for gap in gaps for begin in [min(t for t in instants(one) if t > gap)])


def judged(made: Made, tmp_path: Path) -> verdict.TraceVerdict:
    return verdict.of(made.write(tmp_path / "trace.json"))


AMD = [{"runtime": "cuda_runtime", "prefix": "hip"}, {"runtime": "hip_runtime", "prefix": "hip"}]
VENDORS = [{}, *AMD]
MM = [("cpu_op", "aten::mm")]
ALL_REDUCE = [("cpu_op", "c10d::allreduce_"), ("cpu_op", "record_param_comms")]


@pytest.mark.parametrize("vendor", VENDORS, ids=["CUDA", "ROCm", "ROCm, own category"])
def test_launch_decides_and_not_the_name(tmp_path: Path, vendor: "dict[str, str]") -> None:
    """A kernel with NCCL's name that a product launched is compute; one with any name from a collective is none."""
    made = Made(**vendor)
    made.launch(MM, 0, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10, 30)
    made.launch(ALL_REDUCE, 12, "my_ring_of_rings", 40, 60)
    made.step(1, 0, 100)
    seen = judged(made, tmp_path)
    assert (seen.shares["compute"], seen.shares["communication"]) == pytest.approx((0.3, 0.6))
    assert seen.bound == "communication"
    assert seen.largest == {
        "compute": "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "communication": "my_ring_of_rings",
    }
    assert seen.device == ("hip" if vendor else "cuda")
    assert seen.num_unknown == 0


LAUNCHED_BY_COLLECTIVES = [
    ALL_REDUCE,
    [("user_annotation", "nccl:all_reduce")],
    [("cpu_op", "_c10d_functional::all_gather_into_tensor")],
    [("cpu_op", "_C_custom_ar::all_reduce")],
    [("cpu_op", "AllReduceBackward"), ("cpu_op", "c10d::allreduce_")],
    [("user_annotation", "Optimizer.step#ZeRO.step"), ("cpu_op", "c10d::broadcast_")],
]
LAUNCHED_BY_OTHERS = [
    MM,
    [("cpu_op", "c10d::allgather_"), ("cpu_op", "aten::copy_")],
    [("user_annotation", "FSDP::all_gather"), ("cpu_op", "fsdp::all_gather_copy_in")],
    [("user_annotation", "DistributedDataParallel.forward"), ("cpu_op", "aten::linear")],
    [("cpu_op", "torch::distributed::reducer::mul_out")],
    [("user_annotation", "my part of the step")],
]


@pytest.mark.parametrize("ops", LAUNCHED_BY_COLLECTIVES)
def test_kernel_of_a_collective(tmp_path: Path, ops: Any) -> None:
    made = Made()
    made.launch(ops, 0, "kernel_1", 10, 90)
    assert judged(made, tmp_path).bound == "communication"


@pytest.mark.parametrize("ops", LAUNCHED_BY_OTHERS)
def test_kernel_of_another_operation(tmp_path: Path, ops: Any) -> None:
    made = Made()
    made.launch(ops, 0, "ncclKernel", 10, 90)
    assert judged(made, tmp_path).bound == "compute"


def test_optimizer_of_a_device(tmp_path: Path) -> None:
    made = Made()
    made.launch([("user_annotation", "Optimizer.step#AdamW.step"), ("cpu_op", "aten::_fused_adamw_")], 0, "k", 10, 90)
    assert judged(made, tmp_path).bound == "optimizer"


def test_only_exposed_communication_counts(tmp_path: Path) -> None:
    """Communication beside computation on another stream is hidden; of three kernels at once none counts twice."""
    made = Made()
    made.launch(MM, 0, "gemm", 0, 60)
    made.launch(MM, 12, "gemm", 40, 30, stream=8)
    made.launch(ALL_REDUCE, 24, "ring", 20, 80, stream=COMM_STREAM)
    made.step(1, 0, 100)
    seen = judged(made, tmp_path)
    assert seen.shares["compute"] == pytest.approx(0.7)
    assert seen.shares["communication"] == pytest.approx(0.3)
    assert seen.hidden_communication == pytest.approx(0.5)
    assert sum(seen.shares.values()) == pytest.approx(1)


def test_launch_by_external_id_alone(tmp_path: Path) -> None:
    """Where the call is not in the trace, the operation with the kernel's External id launched it."""
    made = Made()
    number = made.event("cpu_op", "c10d::allreduce_", 0, 10)
    made.event("kernel", "k", 10, 90, pid=DEVICE, tid=COMM_STREAM, External_id=number, correlation=999, device=0)
    seen = judged(made, tmp_path)
    assert (seen.bound, seen.num_unknown) == ("communication", 0)


def test_kernel_that_kineto_marks_as_collective(tmp_path: Path) -> None:
    made = Made()
    made.event("kernel", "k", 0, 100, pid=DEVICE, tid=COMM_STREAM, Collective_name="allreduce", device=0)
    seen = judged(made, tmp_path)
    assert (seen.bound, seen.num_unknown) == ("communication", 0)


def test_name_counts_where_nothing_else_is_known(tmp_path: Path) -> None:
    """Kernels that do not say what launched them go by their name, and are counted."""
    made = Made()
    made.event("kernel", "ncclDevKernel_AllGather_RING_LL", 0, 70, pid=DEVICE, tid=COMM_STREAM, device=0)
    made.event("kernel", "ampere_sgemm_128x64_tn", 70, 30, pid=DEVICE, tid=STREAM_OF_COMPUTE, device=0)
    seen = judged(made, tmp_path)
    assert (seen.shares["communication"], seen.shares["compute"]) == pytest.approx((0.7, 0.3))
    assert seen.num_unknown == 2


STREAM_OF_COMPUTE = 7


def test_gaps_while_operations_are_launched(tmp_path: Path) -> None:
    """Short kernels with the CPU busy between them: launch overhead, also in Python between two operations."""
    made = Made()
    for index in range(50):
        made.launch([("cpu_op", "aten::add")], index * 20, "k", index * 20 + 8, 2)
    made.step(1, 0, 1000)
    seen = judged(made, tmp_path)
    assert seen.shares["compute"] == pytest.approx(0.1)
    assert seen.shares["launch overhead"] == pytest.approx(0.89)
    assert seen.bound == "launch overhead"


def test_gaps_without_any_operation(tmp_path: Path) -> None:
    """Where neither device nor CPU does what the trace knows, the device is idle."""
    made = Made()
    made.launch(MM, 0, "k", 10, 100)
    made.launch(MM, 900, "k", 910, 90)
    made.step(1, 0, 1000)
    seen = judged(made, tmp_path)
    assert seen.bound == "idle"
    assert seen.shares["idle"] == pytest.approx(0.79)


@pytest.mark.parametrize(
    "name",
    ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "[pl][profile]run.train_dataloader_next"],
)
def test_gaps_while_the_loader_is_waited_for(tmp_path: Path, name: str) -> None:
    """All that happens in the loader is input, also its operations."""
    made = Made()
    made.event("user_annotation", name, 0, 700)
    made.event("cpu_op", "aten::stack", 100, 300)
    made.launch(MM, 700, "k", 710, 290)
    made.step(1, 0, 1000)
    seen = judged(made, tmp_path)
    assert (seen.bound, seen.shares["input"]) == ("input", pytest.approx(0.7))


@pytest.mark.parametrize("category", ["gpu_memcpy", "gpu_memset"])
def test_copies(tmp_path: Path, category: str) -> None:
    made = Made()
    made.launch([("cpu_op", "aten::copy_")], 0, "Memcpy HtoD (Pageable -> Device)", 10, 80, category=category)
    made.launch(MM, 20, "k", 60, 40)
    made.step(1, 0, 100)
    seen = judged(made, tmp_path)
    assert (seen.bound, seen.shares["copies"]) == ("copies", pytest.approx(0.5))


def test_thread_that_launches_nothing_is_no_overhead(tmp_path: Path) -> None:
    """A thread that pins memory is busy all the time; the device waits for none of its operations."""
    made = Made()
    made.event("cpu_op", "aten::pin_memory", 0, 1000, tid=WORKER)
    made.launch(MM, 0, "k", 10, 90)
    made.step(1, 0, 1000)
    seen = judged(made, tmp_path)
    assert seen.bound == "idle"


def test_steps_are_profiler_steps(tmp_path: Path) -> None:
    """What lies outside of the steps does not count; the device's lag behind the last step does."""
    made = Made()
    made.event("cpu_op", "aten::save", 0, 1000)
    made.step(7, 1000, 100)
    made.step(8, 1100, 100)
    made.launch(MM, 1000, "k", 1010, 190)
    made.launch(MM, 1150, "k", 1200, 200)
    made.launch(MM, 5000, "k", 5010, 200)
    seen = judged(made, tmp_path)
    assert (seen.counted_by, seen.num_steps) == ("ProfilerStep", 2)
    assert seen.seconds == pytest.approx(400e-6)
    assert seen.step_seconds == pytest.approx((200e-6, 200e-6))
    assert seen.shares["compute"] == pytest.approx(390 / 400)


def test_step_without_an_end_is_none(tmp_path: Path) -> None:
    """The step in which the profiler was stopped does not count."""
    made = Made()
    made.step(3, 0, 100)
    made.step(4, 100, 40)
    made.events[-1]["args"]["finished"] = False
    made.event("cpu_op", "aten::mm", 0, 140)
    assert judged(made, tmp_path).num_steps == 1


def test_steps_apart_are_two_windows(tmp_path: Path) -> None:
    made = Made()
    made.step(3, 0, 100)
    made.step(9, 1000, 100)
    made.event("cpu_op", "aten::mm", 0, 1100)
    seen = judged(made, tmp_path)
    assert seen.seconds == pytest.approx(200e-6)
    assert seen.shares["compute"] == pytest.approx(1)


def test_steps_of_an_optimizer(tmp_path: Path) -> None:
    """Without ProfilerStep a step lasts from the end of one optimizer's step to the end of the next."""
    made = Made()
    for number in range(4):
        made.event("user_annotation", "Optimizer.step#SGD.step", number * 1000 + 900, 100)
    seen = judged(made, tmp_path)
    assert (seen.counted_by, seen.num_steps, seen.seconds) == ("optimizer", 3, pytest.approx(0.003))
    assert seen.shares["optimizer"] == pytest.approx(0.1)


def test_old_categories(tmp_path: Path) -> None:
    """The categories of PyTorch 1.8 are understood too."""
    made = Made(runtime="Runtime")
    made.launch([("Operator", "c10d::allreduce_")], 0, "k", 10, 90)
    for event in made.events:
        if event.get("cat") == "kernel":
            event["cat"] = "Kernel"
    assert judged(made, tmp_path).bound == "communication"


@pytest.mark.tier("all")
@pytest.mark.parametrize("kind", ["input", "compute", "optimizer"])
def test_real_training(tmp_path: Path, kind: str) -> None:
    """A real model that is bound by one kind on the CPU is found to be."""
    seen = verdict.of(real(tmp_path, kind)[0])
    assert (seen.bound, seen.device, seen.num_steps) == (kind, "cpu", 5)
    assert sum(seen.shares.values()) == pytest.approx(1)


@pytest.mark.tier("all")
def test_real_training_that_communicates(tmp_path: Path) -> None:
    """Two gloo ranks that exchange more than they compute are bound by it, and both know their ranks."""
    seen = [verdict.of(path) for path in real(tmp_path, "communication", 2)]
    assert [one.bound for one in seen] == ["communication", "communication"]
    assert [(one.rank, one.world_size) for one in seen] == [(0, 2), (1, 2)]


def test_real_training_with_a_slow_rank(tmp_path: Path) -> None:
    """Of two ranks, that whose loader is slow makes the other one wait, and the command says so."""
    paths = real(tmp_path, "straggler", 2)
    seen = [verdict.of(path) for path in paths]
    waiting = report.who_is_waited_for(seen)
    assert waiting is not None
    assert (waiting.verdict.rank, waiting.kind) == (1, "input")
    assert waiting.share > waiting.own_share
    printed = said("--read", *paths)
    assert "the others wait for rank 1: communication takes" in printed
    assert "helps     rank 1 first: see the last line" in printed
    told = json.loads(said("--read", *paths, "--json"))
    assert told["format"] == 1
    assert [one["bound"] for one in told["traces"]] == ["communication", "input"]
    assert (told["waited_for"]["rank"], told["waited_for"]["kind"]) == (1, "input")


def test_equal_ranks_wait_for_nobody(tmp_path: Path) -> None:
    paths = []
    for rank in range(3):
        made = Made(rank=rank, world_size=3)
        made.launch(MM, 0, "k", 10, 50)
        made.launch(ALL_REDUCE, 10, "k", 60, 40)
        paths.append(made.write(tmp_path / f"{rank}.json"))
    assert report.who_is_waited_for([verdict.of(path) for path in paths]) is None
    assert "no rank makes the others wait" in said("--read", *paths)


def test_rank_from_the_name_of_the_file(tmp_path: Path) -> None:
    made = Made()
    made.fields = {}
    made.launch(MM, 0, "k", 10, 50)
    assert verdict.of(made.write(tmp_path / "rank-17.json.gz")).rank == 17


def said(*words: str, exit_code: int = 0) -> str:
    done = subprocess.run([*ECHELON, "profile", *words], capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, done.stderr
    return done.stdout if not exit_code else done.stderr


def test_command_says_what_bounds_the_steps(tmp_path: Path) -> None:
    made = Made(rank=3, world_size=8)
    made.launch(MM, 0, "gemm<float>", 10, 30)
    made.launch(ALL_REDUCE, 12, "ring", 40, 60)
    made.step(1, 0, 100)
    path = Path(made.write(tmp_path / "trace.json"))
    assert said("--read", str(path)) == (
        "trace     trace.json · rank 3 of 8 · CUDA · 1 step of 100 µs\n"
        "bound by  communication: 60.0% of the time\n"
        "a step    communication        60 µs   60.0%   mostly ring\n"
        "          compute              30 µs   30.0%   mostly gemm<float>\n"
        "          launch overhead      10 µs   10.0%\n"
        "helps     a larger batch per rank; fewer or smaller messages; "
        "echelon check --collectives tests the network\n"
    )
    path.write_text(path.read_text()[:-30])
    assert "the file is cut off: this is of the 7 events that can be read" in said("--read", str(path))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--read"], "--read names no trace"),
        (["--read", "missing.json"], "missing.json: No such file or directory"),
        (["trace.json"], "a trace is read with --read"),
    ],
)
def test_command_refuses(words: "list[str]", why: str) -> None:
    assert why in said(*words, exit_code=2)
