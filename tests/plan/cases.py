"""The jobs whose batch scripts are kept whole: each machine, from one device to one past its limit."""

from dataclasses import dataclass
from datetime import date

from echelon.machines import load
from echelon.machines.machine import Machine
from echelon.spec import Request

TODAY = date(2026, 7, 1)  # before Puhti and Mahti were shut down
HOUR = 60


@dataclass(frozen=True)
class Case:
    """One job for one machine."""

    machine: str
    name: str
    request: Request

    @property
    def id(self) -> str:
        return f"{self.machine}-{self.name}"


def machine(name: str) -> Machine:
    """Return a machine as it is shipped, whatever the user of this shell has of his own."""
    return load.find(name, {"HOME": "/nonexistent"})


def request(machine_name: str, **fields: object) -> Request:
    """Return a request with what every job of these machines must name."""
    known = machine(machine_name)
    account = "project_465000000" if known.account == "required" else ""
    qos = "normal" if known.qos == "required" else ""
    return Request(**{"minutes": HOUR, "account": account, "qos": qos, **fields})  # type: ignore[arg-type]


def case(machine_name: str, name: str, **fields: object) -> Case:
    return Case(machine_name, name, request(machine_name, **fields))


# devices of a node: LUMI-G 8, Roihu 4, Mahti 4, Puhti 4, HiPerGator's hpg-b200 8, Frontier 8, the others 4
CASES = [
    case("lumi", "1-gpu", num_devices=1),
    case("lumi", "2-gpus", num_devices=2),
    case("lumi", "half-node", num_devices=4),
    case("lumi", "full-node", num_devices=8),
    case("lumi", "2-nodes", num_nodes=2),
    case("lumi", "limit", num_devices=8192),
    case("roihu", "1-gpu", num_devices=1),
    case("roihu", "2-gpus", num_devices=2),
    case("roihu", "full-node", num_devices=4),
    case("roihu", "2-nodes", num_nodes=2, partition="gpularge"),
    case("roihu", "limit", num_devices=40, partition="gpularge"),
    case("mahti", "1-gpu", num_devices=1),
    case("mahti", "2-gpus", num_devices=2),
    case("mahti", "full-node", num_devices=4),
    case("mahti", "2-nodes", num_nodes=2),
    case("mahti", "limit", num_devices=24),
    case("puhti", "1-gpu", num_devices=1),
    case("puhti", "2-gpus", num_devices=2),
    case("puhti", "full-node", num_devices=4),
    case("puhti", "2-nodes", num_nodes=2),
    case("puhti", "limit", num_devices=80),
    case("hipergator", "1-gpu", num_devices=1),
    case("hipergator", "2-gpus", num_devices=2, num_nodes=1, partition="hpg-b200"),
    case("hipergator", "half-node", num_devices=4, partition="hpg-rtx6000"),
    case("hipergator", "full-node", num_devices=8),
    case("hipergator", "2-nodes", num_nodes=2, partition="hpg-b200"),
    case("frontier", "full-node", num_devices=8),
    case("frontier", "2-nodes", num_devices=16),
    case("alps", "1-gpu", num_devices=1),
    case("alps", "2-nodes", num_devices=8),
    case("daint", "2-nodes", num_devices=8),
    case("leonardo", "1-gpu", num_devices=1),
    case("leonardo", "2-nodes", num_devices=8, qos="boost_qos_dbg", minutes=30),
    case("leonardo", "limit", num_devices=1024),
    case("snellius", "1-gpu", num_devices=1, chip="H100"),
    case("snellius", "2-nodes", num_devices=8),
    case("isambard-ai", "1-gpu", num_devices=1),
    case("isambard-ai", "2-nodes", num_devices=8),
    case("perlmutter", "1-gpu", num_devices=1),
    case("perlmutter", "2-nodes", num_devices=8),
]

# one past the largest partition, where the limit is published in a few words
PAST = [
    case("lumi", "limit+1", num_devices=8200),
    case("roihu", "limit+1", num_devices=44, partition="gpularge"),
    case("mahti", "limit+1", num_devices=28),
    case("puhti", "limit+1", num_devices=84),
]
