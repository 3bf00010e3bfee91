"""A request becomes nodes, cores, memory and a bill, or a refusal that names the limit."""

from dataclasses import replace
from datetime import date

import pytest

from echelon.errors import UsageError
from echelon.machines.machine import Machine, NodeType, Partition
from echelon.plan import candidates as plan_candidates
from echelon.plan.book import book, refuse_missing_account
from echelon.plan.candidates import candidates, choose, why_not
from echelon.spec import Request

from .cases import TODAY, machine, request

GIB = 1 << 30
DAY = 24 * 60


@pytest.mark.parametrize(
    ("partition", "nodes", "devices", "cores", "gib", "minutes", "units"),
    [
        ("small-g", 1, 2, 14, 120, DAY, 24),
        ("small-g", 1, 1, 7, 128, DAY, 24),
        ("small-g", 1, 1, 14, 60, 2 * 60, 2),  # one device with the cores of two is billed as two
        ("standard-g", 4, 8, 56, 480, DAY, 384),
    ],
)
def test_lumi_bills_as_documented(
    partition: str, nodes: int, devices: int, cores: int, gib: int, minutes: int, units: float
) -> None:
    """LUMI's published examples come out."""
    row = plan_candidates.rule(machine("lumi"), partition)
    assert row is not None
    charged = plan_candidates.Charged(
        num_nodes=nodes, devices_per_node=devices, cores_per_node=cores, memory_bytes_per_node=gib * GIB,
        minutes=minutes,
    )  # fmt: skip
    assert units == plan_candidates.units(row, charged)


def refusal(asked: Request, known: Machine) -> UsageError:
    with pytest.raises(UsageError) as error:
        book(asked, known, today=TODAY)
    return error.value


SMALL = {"num_devices": 8, "partition": "small-g"}
REFUSED = [
    ({**SMALL, "num_devices": 80}, "at most 4 nodes of 8 devices, but the job needs 10", "--gpus 32"),
    ({**SMALL, "minutes": 4 * DAY}, "at most 3-00:00:00 of time, but the job asks for 4-00:00:00", "--time 3-00:00:00"),
    ({**SMALL, "num_devices": 9, "num_nodes": 1}, "at most 8 devices on a node", "--gpus 8"),
    ({**SMALL, "cores_per_device": 8}, "(8 of 64 are reserved), but the job asks for 8 × 8 = 64", "--cores-per-gpu 7"),
    ({**SMALL, "memory_bytes_per_device": 64 * GIB}, "480 GiB, but the job asks for 512 GiB", "--mem-per-gpu 60G"),
    ({"num_devices": 9, "num_nodes": 2}, "2 nodes cannot share 9 devices equally", "--gpus 8   or --gpus 10"),
    ({"num_devices": 8, "partition": "smal-g"}, "has no partition smal-g; it has", "--partition small-g"),
    ({"num_devices": 8, "chip": "MI300X"}, "--chip MI300X: this machine has A40, MI250X", "--chip MI250X"),
    ({"num_devices": 16, "global_batch": 100}, "16 ranks cannot share a global batch", "--global-batch 96   or"),
    ({"num_devices": 16, "global_batch": 10}, "a global batch of 10", "--global-batch 16"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message", "hint"), REFUSED)
def test_lumi_refuses(fields: dict[str, object], message: str, hint: str) -> None:
    """What the partition would refuse is refused before it is queued, with limit and nearest."""
    error = refusal(request("lumi", **fields), machine("lumi"))
    assert message in str(error)
    assert hint in error.hint


def test_global_batch_is_divided() -> None:
    """256 samples over 16 ranks are 16 each."""
    assert book(request("lumi", num_devices=16, global_batch=256), machine("lumi"), today=TODAY).batch_per_rank == 16


def test_retired_machine_names_its_successor() -> None:
    """A machine that was shut down is refused after that day, and still planned for to be read."""
    mahti = machine("mahti")
    with pytest.raises(UsageError, match="shut down on 2026-08-31") as error:
        book(request("mahti", num_devices=40), mahti, today=date(2026, 9, 1), successor=machine("roihu"))
    assert "--machine roihu --gpus 4" in error.value.hint
    assert "--plain" in error.value.hint
    assert book(request("mahti", num_devices=1), mahti, today=date(2026, 9, 1), even_if_retired=True).num_nodes == 1


def test_missing_account() -> None:
    """Where the site bills projects, one must be named, and the user's groups are offered."""
    lumi = machine("lumi")
    booking = book(replace(request("lumi", num_devices=1), account=""), lumi, today=TODAY)
    with pytest.raises(UsageError, match="--account is missing; you belong to project_1, project_2") as error:
        refuse_missing_account(booking, lumi, ("project_1", "project_2"))
    assert error.value.hint == "--account project_1"


def test_why_not() -> None:
    """Every partition that was not taken has a reason."""
    lumi = machine("lumi")
    asked = request("lumi", num_devices=16)
    judged = candidates(asked, lumi, TODAY)
    chosen = choose(asked, lumi, judged)
    assert chosen.partition.name == "small-g"
    assert "costs the same; echelon prefers small-g" in why_not("standard-g", chosen, judged, lumi)
    assert "for short trials" in why_not("dev-g", chosen, judged, lumi)
    assert "nothing" in why_not("small-g", chosen, judged, lumi)
    with pytest.raises(UsageError, match="no partition standart-g"):
        why_not("standart-g", chosen, judged, lumi)


def test_cheaper_partition_wins() -> None:
    """Four devices cost half a node in small-g and a whole one in standard-g."""
    lumi = machine("lumi")
    asked = request("lumi", num_devices=4)
    judged = candidates(asked, lumi, TODAY)
    chosen = choose(asked, lumi, judged)
    assert why_not("standard-g", chosen, judged, lumi) == ("it fits, but takes 4 GPU-hours, and small-g takes 2")


@pytest.mark.parametrize(("wanted", "nodes", "ranks"), [(8, 1, 8), (9, 3, 3), (12, 2, 6), (16, 2, 8), (10, 2, 5)])
def test_equal_shares(wanted: int, nodes: int, ranks: int) -> None:
    """Devices lie equally on the fewest nodes."""
    booking = book(request("lumi", num_devices=wanted, minutes=60), machine("lumi"), today=TODAY)
    assert (booking.num_nodes, booking.ranks_per_node) == (nodes, ranks)


def test_prime_number_of_devices_is_not_one_on_each_node() -> None:
    """Eleven devices would take eleven nodes: the neighbours that take two are offered."""
    error = refusal(request("lumi", num_devices=11), machine("lumi"))
    assert "11 devices fit equally on nodes of 8 only with 11 nodes, 1 device on each" in error.message
    assert error.hint == "--gpus 10   or --gpus 12   or, if you want that: --nodes 11"
    meant = book(request("lumi", num_devices=11, num_nodes=11, partition="standard-g"), machine("lumi"), today=TODAY)
    assert meant.num_nodes == 11


def test_nearest_is_the_longest_where_time_is_too_much() -> None:
    """Too much time is answered with the partition that gives most of it."""
    error = refusal(request("lumi", num_devices=16, minutes=80 * 60), machine("lumi"))
    assert error.hint == "--time 3-00:00:00   or --time 2-00:00:00"


def test_nearest_keeps_the_chip() -> None:
    """Who asked for a chip is not offered another."""
    error = refusal(request("snellius", num_devices=8, chip="H100", minutes=6 * DAY), machine("snellius"))
    assert error.hint == "--time 5-00:00:00"


def test_fewer_nodes_win_where_no_bill_is_known() -> None:
    """Eight devices go to one node of eight, not to four nodes of three."""
    hipergator = machine("hipergator")
    asked = request("hipergator", num_devices=8)
    judged = candidates(asked, hipergator, TODAY)
    chosen = choose(asked, hipergator, judged)
    assert (chosen.partition.name, chosen.laid.num_nodes, chosen.laid.cores_per_rank) == ("hpg-b200", 1, 14)
    assert why_not("hpg-turin", chosen, judged, hipergator) == "it fits, but on 4 nodes, and hpg-b200 takes 1"


@pytest.mark.parametrize(
    ("nodes", "hours", "partition"),
    [(1, 2, "batch"), (64, 24, "extended"), (91, 3, ""), (92, 6, "batch"), (183, 7, ""), (184, 12, "batch")],
)
def test_frontier_gives_larger_jobs_more_time(nodes: int, hours: int, partition: str) -> None:
    """The time limit of batch depends on the number of nodes."""
    asked = request("frontier", num_nodes=nodes, minutes=hours * 60)
    if partition:
        assert book(asked, machine("frontier"), today=TODAY).partition == partition
    else:
        assert f"of time for {nodes} nodes" in refusal(asked, machine("frontier")).details


def test_whole_nodes_have_all_devices_and_cores() -> None:
    """Four ranks on a whole node book its eight devices and share its usable cores."""
    booking = book(request("lumi", num_devices=4, partition="standard-g"), machine("lumi"), today=TODAY)
    assert (booking.devices_per_node, booking.ranks_per_node, booking.cores_per_rank) == (8, 4, 14)
    assert booking.memory_bytes_per_node == 480 * GIB


def test_unknown_stays_unknown() -> None:
    """Where nobody publishes what a node has, more than one device is not guessed into one."""
    row = {"source": "a page", "seen": TODAY}
    known = Machine(
        name="new", title="New", **row,
        partitions=(Partition(name="gpu", node_type="n", **row),),
        node_types=(NodeType(name="n", chip="X", vendor="nvidia", gres="gpu:x", **row),),
    )  # fmt: skip
    assert book(Request(num_devices=1, minutes=60), known, today=TODAY).num_nodes == 1
    error = refusal(Request(num_devices=4, minutes=60), known)
    assert "the number of GPUs of a node is not published" in error.details
    assert error.hint == "--nodes 1"  # which is taken, in the next line
    booking = book(Request(num_devices=4, num_nodes=1, minutes=60), known, today=TODAY)
    assert (booking.cores_per_rank, booking.memory_bytes_per_node, booking.billed) == (0, 0, None)
    error = refusal(Request(num_nodes=2, minutes=60), known)
    assert "not published" in str(error)
    assert error.hint == "--gpus 4"


def test_partition_whose_devices_cannot_be_asked_for() -> None:
    """Where nobody publishes how Slurm calls the devices, no job is planned."""
    row = {"source": "a page", "seen": TODAY}
    known = Machine(
        name="new", title="New", **row,
        partitions=(Partition(name="mig", node_type="n", **row),),
        node_types=(NodeType(name="n", chip="X", vendor="nvidia", num_devices=7, **row),),
    )  # fmt: skip
    error = refusal(Request(num_devices=1, minutes=60), known)
    assert "the Slurm option for its devices is not published" in error.details
    assert error.hint == ""


def test_network_setting_ends_above_its_limit() -> None:
    """LUMI's RDMA level is not set above 256 nodes, nor for a PyTorch of ROCm 6.2."""
    lumi = machine("lumi")

    def names(rocm: str = "", **fields: object) -> set[str]:
        return {row.name for row in book(request("lumi", **fields), lumi, today=TODAY, rocm=rocm).variables}

    assert "NCCL_NET_GDR_LEVEL" in names(num_devices=16)
    assert "NCCL_NET_GDR_LEVEL" not in names(num_nodes=257)
    assert "NCCL_NET_GDR_LEVEL" in names("6.1", num_devices=16)
    assert "NCCL_NET_GDR_LEVEL" not in names("6.2", num_devices=16)
    assert "NCCL_NET_GDR_LEVEL" not in names("10.0", num_devices=16)
