"""What ranks say of their places, from a generated LUMI-G node to the line that a person reads."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.topology import trees

from echelon.launch.binding_report import ReportedBindings
from echelon.node.agent_spec import AgentSpec, Placement
from echelon.node.binding import Binding
from echelon.topology.binding import parse_cpu_list

MAP = ("49-55", "57-63", "17-23", "25-31", "1-7", "9-15", "33-39", "41-47")
SPEC = AgentSpec(
    run_id="r", addresses=[], argv=["python", "train.py"], is_python=True, preload=[], own=[], folder="", launch="warm",
    visible="all", scale="", bind="auto", reserved=[], settings=[], ranks_per_node=8, environ={},
    max_restarts=0, connect_seconds=1.0, refused_seconds=1.0, is_private_directory=False, forwards_signals=True,
    secret=b"",
)  # fmt: skip
PLACEMENT = Placement(
    agent_index=0, node_rank=0, node="n0", first_local_rank=0, num_ranks=8, local_world_size=8, num_cores=56,
    num_devices=8,
)  # fmt: skip
JOB = {"SLURM_JOB_ID": "1"}


class Told:
    """A supervisor's ear: what was said, and what went into the run directory."""

    def __init__(
        self, num_agents: int = 1, bind: str = "auto", documented: tuple[tuple[int, tuple[int, ...]], ...] = ()
    ) -> None:
        self.lines: list[str] = []
        self.events: list[str] = []
        plan: Any = SimpleNamespace(bind=bind, documented_cores=documented)
        directory: Any = SimpleNamespace(event=lambda kind, **fields: self.events.append(kind))
        self.bound = ReportedBindings(plan, directory, num_agents, self.lines.append)

    def hear(self, agent: int, node: str, rows: list[dict[str, Any]], *, is_change: bool = False) -> Any:
        return self.bound.hear(agent, node, {"kind": "bound", "ranks": rows, "is_change": is_change, "num_unseen": 0})


@pytest.fixture
def lumi(tmp_path: Path) -> Iterator[Binding]:
    trees.lumi_g(tmp_path)
    yield Binding(SPEC, PLACEMENT, JOB, str(tmp_path))


def rows(binding: Binding, first_rank: int = 0, **changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what eight ranks report; `changes` by rank: its cores, or variables of its environment."""
    found = []
    for local_rank in range(8):
        change = changes.get(f"rank_{local_rank}", {})
        cpus = change.get("cpus", binding.cpus(local_rank))
        environ = {**JOB, "LOCAL_RANK": str(local_rank), **change.get("environ", {})}
        found.append({"rank": first_rank + local_rank, **binding.held(local_rank, cpus, environ)})
    return found


def test_lumi_node_is_proved(lumi: Binding) -> None:
    """Every rank of a full LUMI-G node sits on the documented cores, at distance 10, and one line says so."""
    said = rows(lumi)
    assert [row["cpus"].split(",")[0] for row in said] == list(MAP)
    assert {row["distance"] for row in said} == {10}
    assert {row["nic"] for row in said} == {"hsn0", "hsn1", "hsn2", "hsn3"}
    told = Told()
    assert told.hear(0, "n0", said) is None
    assert told.lines == ["bound: 8 ranks, each on the 7 cores nearest to its device (proved)"]


def test_changed_mask_names_that_rank(lumi: Binding) -> None:
    """A rank whose mask was changed from outside is named with both masks, and no other."""
    told = Told()
    told.hear(0, "n0", rows(lumi, rank_3={"cpus": range(64)}))
    assert told.lines == [f"warning: rank 3 on n0 runs on cores 0-63, planned {rows(lumi)[3]['wanted_cpus']}"]


def test_hidden_device_names_those_ranks(lumi: Binding) -> None:
    """Ranks that cannot see their device any more are named."""
    told = Told()
    hidden = {"environ": {"ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5"}}
    told.hear(0, "n0", rows(lumi, rank_6=hidden, rank_7=hidden))
    assert told.lines == [
        "warning: rank 6 on n0 sees no device, planned 6",
        "warning: rank 7 on n0 sees no device, planned 7",
    ]


def test_swapped_ranks_are_both_named(lumi: Binding) -> None:
    """Two ranks that took each other's device are named, with the devices that they use."""
    told = Told()
    told.hear(0, "n0", rows(lumi, rank_2={"environ": {"LOCAL_RANK": "5"}}, rank_5={"environ": {"LOCAL_RANK": "2"}}))
    assert told.lines == [
        "warning: rank 2 on n0 uses device 5, planned 2",
        "warning: rank 5 on n0 uses device 2, planned 5",
    ]


def test_order_of_devices_is_followed(tmp_path: Path) -> None:
    """Where the user reorders the devices, the cores follow."""
    trees.lumi_g(tmp_path)
    environ = {**JOB, "ROCR_VISIBLE_DEVICES": "4,5,2,3,6,7,0,1"}
    binding = Binding(SPEC, PLACEMENT, environ, str(tmp_path))
    first = [binding.cpus(local_rank)[0] for local_rank in range(8)]
    assert first == [1, 9, 17, 25, 33, 41, 49, 57]
    held = binding.held(0, binding.cpus(0), {**environ, "LOCAL_RANK": "0"})
    assert (held["device"], held["wanted_device"]) == (4, 4)


def test_own_device_alone_is_the_right_one(lumi: Binding) -> None:
    """A rank that sees its own device as number 0 uses the device that was planned for it."""
    own = {"LOCAL_RANK": "0", "ROCR_VISIBLE_DEVICES": "5"}
    assert lumi.held(5, lumi.cpus(5), {**JOB, **own})["device"] == 5


def test_strict_ends_the_run(lumi: Binding) -> None:
    """With --bind strict a difference is the failure of the run."""
    told = Told(bind="strict")
    failure = told.hear(0, "n0", rows(lumi, rank_3={"cpus": [0]}))
    assert "rank 3 on n0 runs on cores 0, planned 25-31" in failure.detail
    assert told.bound.hear(0, "n0", {"kind": "unbound", "why": "8 ranks share 2 cores"}) is not None


def test_many_wrong_ranks_are_counted(lumi: Binding) -> None:
    """Of many, the first four are named and the others counted."""
    told = Told()
    told.hear(0, "n0", rows(lumi, **{f"rank_{rank}": {"cpus": [0]} for rank in range(8)}))
    assert len(told.lines) == 5
    assert told.lines[-1] == "warning: and 4 more ranks run elsewhere than planned (events.jsonl)"


def test_all_nodes_are_waited_for(lumi: Binding) -> None:
    """The line comes once, when all nodes have spoken, and counts them."""
    told = Told(num_agents=2)
    told.hear(0, "n0", rows(lumi))
    assert told.lines == []
    told.hear(1, "n1", rows(lumi, 8))
    assert told.lines == ["bound: 16 ranks on 2 nodes, each on the 7 cores nearest to its device (proved)"]


def test_later_change_is_told_when_it_is_seen(lumi: Binding) -> None:
    """A rank that moves later is named then; one that comes back is not."""
    told = Told()
    told.hear(0, "n0", rows(lumi))
    moved = rows(lumi, rank_1={"cpus": [0]})[1]
    told.hear(0, "n0", [moved], is_change=True)
    assert told.lines[-1].startswith("warning: rank 1 on n0 runs on cores 0, planned ")
    assert told.lines[-1].endswith("; it was moved after the start")
    told.hear(0, "n0", [rows(lumi)[1]], is_change=True)
    assert len(told.lines) == 2


def test_node_that_is_built_otherwise_is_told(lumi: Binding) -> None:
    """Where the node disagrees with the machine's facts, both are shown; where it agrees, nothing is."""
    facts = tuple((device, tuple(parse_cpu_list(cores))) for device, cores in enumerate(MAP))
    told = Told(documented=facts)
    told.hear(0, "n0", rows(lumi))
    assert len(told.lines) == 1
    told = Told(documented=((0, facts[4][1]), *facts[1:]))
    told.hear(0, "n0", rows(lumi))
    assert "note: on n0 the cores nearest to device 0 are 49-55" in told.lines[1]
    assert "the machine's facts say 1-7" in told.lines[1]


def test_outside_of_a_job_a_device_has_its_share_only(tmp_path: Path) -> None:
    """On a shared workstation two ranks leave the cores of the other six devices to their users."""
    trees.dgx_a100(tmp_path)
    placement = PLACEMENT._replace(num_ranks=2, local_world_size=2, num_devices=2)
    alone = Binding(SPEC, placement, {"CUDA_VISIBLE_DEVICES": "0,1"}, str(tmp_path))
    in_job = Binding(SPEC, placement, {**JOB, "CUDA_VISIBLE_DEVICES": "0,1"}, str(tmp_path))
    assert alone.num_cores(0) == 16
    assert in_job.num_cores(0) == 64
    assert json.dumps(alone.held(0, alone.cpus(0), {"LOCAL_RANK": "0"}))


def test_partly_documented_node_is_no_error(lumi: Binding) -> None:
    """Where the facts know some of the devices, the others are left alone."""
    facts = tuple((device, tuple(parse_cpu_list(MAP[device % 8]))) for device in (2, 3, 0, 1, 6, 7, 9, 10))
    told = Told(documented=facts)
    told.hear(0, "n0", rows(lumi))
    assert len(told.lines) == 1


def test_node_that_is_not_bound_is_named_beside_the_others(lumi: Binding) -> None:
    """One node without binding does not silence the proof of the rest."""
    told = Told(num_agents=3)
    for agent in range(2):  # two of one node
        told.bound.hear(agent, "n0", {"kind": "unbound", "why": "8 ranks share 2 cores"})
    told.hear(2, "n1", rows(lumi, 8))
    assert told.lines == [
        "note: echelon does not bind the ranks on n0: 8 ranks share 2 cores",
        "bound: 8 ranks, each on the 7 cores nearest to its device (proved)",
    ]


def test_rank_that_narrows_its_mask_is_in_its_place(lumi: Binding) -> None:
    """A rank may use fewer of its cores: nobody is in its way."""
    told = Told(bind="strict")
    assert told.hear(0, "n0", rows(lumi, rank_3={"cpus": [25]})) is None


def test_ranks_that_ended_unseen_are_counted(lumi: Binding) -> None:
    """A rank that ended before it was seen is no proof."""
    told = Told()
    told.bound.hear(0, "n0", {"kind": "bound", "ranks": rows(lumi)[:6], "is_change": False, "num_unseen": 2})
    assert told.lines[0].endswith("(proved; 2 ended before echelon saw them)")
