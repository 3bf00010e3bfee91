"""Nodes as they should be: trees of documented machines, surveyed by the code that surveys real nodes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.topology import trees

from echelon.checks.examine import examine
from echelon.checks.finding import Finding, Wanted
from echelon.lint.pages import words
from echelon.machines import load
from echelon.machines.machine import Machine
from echelon.node.survey import take
from echelon.node.survey.nouns import KernelLimits, Survey

GIB = 1 << 30
LIMITS = KernelLimits(
    locked_bytes=-1, open_files=131072, open_files_most=131072, processes=-1, stack_bytes=-1,
    shared_bytes=250 * GIB, shared_free_bytes=250 * GIB, is_shared_writable=True,
)  # fmt: skip
MOUNTS = """\
21 1 0:20 / / rw - overlay overlay rw
22 21 0:21 / /tmp rw - tmpfs tmpfs rw
23 21 0:22 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw
24 21 0:23 / /users rw - lustre 10.0.0.2@o2ib:/users rw
"""
LUMI_PLUGINS = "opt/rccl/lib"
VARIABLES = words()["variables"]


@dataclass(frozen=True, kw_only=True)
class Good:
    """A documented node as a job sees it whose script is right."""

    name: str
    tree: Callable[..., Path]
    options: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    partition: str = ""
    num_devices: int = 0
    memory_bytes: int = 512 * GIB
    ranks: int = 0


LUMI = {
    "HOME": "/users/me",
    "USER": "me",
    "MIOPEN_USER_DB_PATH": "/tmp/me-miopen-7",
    "MIOPEN_CUSTOM_CACHE_DIR": "/tmp/me-miopen-7",
    "TRITON_CACHE_DIR": "/tmp/me-triton",
    "TORCH_EXTENSIONS_DIR": "/tmp/me-extensions",
    "NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3",
    "LD_LIBRARY_PATH": "/" + LUMI_PLUGINS,
}
PLAIN = {"HOME": "/tmp/me", "USER": "me"}

GOOD = (
    Good(name="LUMI, a whole node", tree=trees.lumi_g, environ=LUMI, machine="lumi", partition="standard-g",
         num_devices=8),
    Good(name="LUMI, two devices", tree=trees.lumi_g, environ=LUMI, machine="lumi", partition="small-g",
         options={"cpus": "17-23,25-31", "devices": (2, 3)}, num_devices=2),
    Good(name="LUMI, one device selected by ROCr", tree=trees.lumi_g, environ={**LUMI, "ROCR_VISIBLE_DEVICES": "0"},
         machine="lumi", partition="small-g", options={"cpus": "49-55", "devices": (0,)}, num_devices=1),
    Good(name="DGX A100, a whole node", tree=trees.dgx_a100, environ=PLAIN, num_devices=8),
    Good(name="DGX A100, four devices", tree=trees.dgx_a100, environ=PLAIN,
         options={"cpus": "16-31,48-63,144-159,176-191", "devices": (0, 1, 2, 3)}, num_devices=4),
    Good(name="Roihu, a whole node", tree=trees.gh200, environ=PLAIN, machine="roihu", partition="gpumedium",
         num_devices=4),
    Good(name="Roihu, one device", tree=trees.gh200, environ=PLAIN, options={"cpus": "0-71", "devices": (0,)},
         num_devices=1),
    Good(name="Puhti, a whole node", tree=trees.v100, environ=PLAIN, machine="puhti", partition="gpu", num_devices=4),
    Good(name="Puhti, one device", tree=trees.v100, environ=PLAIN, options={"cpus": "0-9", "devices": (0,)},
         num_devices=1, machine="puhti", partition="gpu"),
    Good(name="a workstation", tree=trees.workstation, environ=PLAIN, memory_bytes=128 * GIB),
    Good(name="a virtual machine without devices", tree=trees.vm, environ=PLAIN, memory_bytes=8 * GIB, ranks=4),
)  # fmt: skip
BY_NAME = {good.name: good for good in GOOD}


class Changed(trees.Tree):
    """A tree that is changed for a moment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._before: dict[Path, str | None] = {}

    def write(self, path: str, text: object) -> None:
        target = self.root / path
        self._before.setdefault(target, target.read_text() if target.exists() else None)
        super().write(path, text)

    def restore(self) -> None:
        """Undo every change."""
        for path, text in self._before.items():
            if text is None:
                path.unlink()
            else:
                path.write_text(text)


class Forest:
    """The trees of all nodes, each built once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._built: dict[str, Path] = {}

    def tree(self, good: Good) -> Path:
        key = f"{good.name} {dict(good.options)}"
        if key not in self._built:
            self._built[key] = build(good, self._folder / f"tree-{len(self._built)}")
        return self._built[key]

    def packages(self, records: tuple[str, ...]) -> str:
        """Return a folder in which Python would find these packages."""
        folder = self._folder / ("packages-" + "-".join(records))
        for name in records:
            (folder / f"{name}.dist-info").mkdir(parents=True, exist_ok=True)
        return str(folder)


def build(good: Good, root: Path) -> Path:
    """Write the tree of a node, with what the topology's own trees leave out."""
    path = good.tree(root, **good.options)
    tree = Changed(path)
    tree.write(
        "proc/meminfo", f"MemTotal: {good.memory_bytes // 1024} kB\nMemAvailable: {good.memory_bytes // 1100} kB"
    )
    tree.write("proc/self/mountinfo", MOUNTS.rstrip())
    tree.write("proc/loadavg", "0.52 0.58 0.59 1/467 12345")
    if good.machine == "lumi":
        tree.write(f"{LUMI_PLUGINS}/librccl-net.so", "")
        for bus in trees.LUMI_BUSES:
            tree.write(f"sys/bus/pci/devices/0000:{bus}:00.0/mem_info_vram_used", 12 << 20)
            tree.write(f"sys/bus/pci/devices/0000:{bus}:00.0/ras/umc_err_count", "ue: 0\nce: 3")
    return path


def survey(good: Good, root: Path, environ: Mapping[str, str] | None = None, **asked: Any) -> Survey:
    """Return what the node at a tree answers; the limits are those of a good node, not of this process."""
    options: dict[str, Any] = {"root": str(root), "checkpoints": str(root), **asked}
    taken = take.survey(take.SurveyRequest(**options), good.environ if environ is None else environ)
    names = {"slingshot": "10.1.0.1", "ethernet": "10.2.0.1", "infiniband": "10.3.0.1"}
    interfaces = tuple(each._replace(address=names.get(each.kind, "")) for each in taken.network.interfaces)
    return taken._replace(limits=LIMITS, network=taken.network._replace(interfaces=interfaces))


@cache
def machine_named(name: str) -> Machine:
    return load.find(name, {})


def wanted(good: Good, *, num_nodes: int = 1, nodes: tuple[str, ...] = ()) -> Wanted:
    """Return what such a job wants of its nodes, as the command finds it out."""
    plain = Wanted(
        num_nodes=num_nodes,
        ranks_per_node=good.ranks,
        in_allocation=bool(good.num_devices),
        devices_by_node=dict.fromkeys(nodes, good.num_devices) if good.num_devices else {},
        known_variables=tuple(VARIABLES["known"]),
        renamed_variables=dict(VARIABLES["renamed"]),
    )
    if not good.machine:
        return plain
    machine = machine_named(good.machine)
    partition = next(row for row in machine.partitions if row.name == good.partition)
    return replace(
        plain,
        machine=machine.name,
        kind=machine.node_type(partition),
        whole_nodes=partition.whole_nodes,
        network=machine.networks[0] if machine.networks else None,
        binds=tuple(bind.partition(":")[0] for row in machine.containers for bind in row.binds),
    )


def several(one: Survey, count: int) -> list[Survey]:
    """Return as many nodes that are like one."""
    return [one._replace(node=f"nid{5000 + index:06d}") for index in range(count)]


def judge(good: Good, surveys: list[Survey], **changes: Any) -> list[Finding]:
    """Return what the checks find."""
    names = tuple(each.node for each in surveys)
    return examine(surveys, replace(wanted(good, num_nodes=len(surveys), nodes=names), **changes))
