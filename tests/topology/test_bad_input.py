"""Whatever a node's files hold, reading them ends in a node."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.topology import trees

from echelon.cli import topology
from echelon.hardware import files
from echelon.topology import binding, discover
from echelon.topology.cpus import parse_cpu_list
from echelon.topology.node import Node

GARBAGE = (
    b"",
    b"\n",
    b"-1\n",
    b"\xff\xfe\x00",
    b"0-\n",
    b"a b c\n",
    b"99999999999999999999999\n",
    b"1-0\n",
    b"0-3,x\n",
)
MACHINES = (trees.lumi_g, trees.dgx_a100, trees.workstation, trees.vm)


def use(node: Node) -> None:
    """Do with a node all that is done with nodes."""
    discover.as_dict(node)
    topology.table(node)
    for device in node.devices:
        binding.nearest_nic(node, device)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_broken_files_never_raise(machine: Callable[..., Path], tmp_path: Path) -> None:
    """Files that are missing, empty, cut or full of garbage leave things unknown."""
    root = machine(tmp_path / "tree")
    everything = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    chance = random.Random(7)
    for _ in range(12):
        for path in chance.sample(everything, k=len(everything) // 6):
            if chance.random() < 0.3:
                path.unlink(missing_ok=True)
            elif path.parent.is_dir():
                path.write_bytes(chance.choice(GARBAGE))
        use(discover.read(str(root), {}))


@pytest.mark.parametrize(
    "folder", ["sys/devices/system/cpu", "sys/devices/system/node", "sys/bus", "sys/class", "proc"]
)
def test_missing_folders_never_raise(folder: str, tmp_path: Path) -> None:
    """A container may hide any part of sysfs and procfs."""
    root = trees.lumi_g(tmp_path / "tree")
    shutil.rmtree(root / folder)
    node = discover.read(str(root), {})
    use(node) if node.cpus else None
    assert len(binding.assign(node, node.devices or [None])) == max(1, len(node.devices))


def test_nothing_at_all(tmp_path: Path) -> None:
    """An empty tree is a node of which nothing is known."""
    node = discover.read(str(tmp_path), {})
    assert (node.cpus, node.allowed, node.devices, node.nics) == ((), (), (), ())
    assert binding.assign(node, [None]) == [()]


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("", ()),
        ("0-2,5", (0, 1, 2, 5)),
        (" 3 , 1\n", (1, 3)),
        ("3-1", ()),
        ("-1", ()),
        ("x,2", (2,)),
        ("0-9999999", ()),
    ],
)
def test_cpu_list_is_read(text: str, cpus: tuple[int, ...]) -> None:
    """Lists are read as the kernel writes them; what is none of its words is left out."""
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(("cpus", "text"), [((), ""), ((3,), "3"), ((1, 2, 3, 5), "1-3,5"), ((9, 7, 8, 7), "7-9")])
def test_cpu_list_is_written(cpus: tuple[int, ...], text: str) -> None:
    """Lists are written as short as they can be."""
    assert binding.cpu_list(cpus) == text


def test_masks_are_whole_words() -> None:
    """A mask has sixteen digits for every 64 hardware threads."""
    assert binding.mask(()) == "0x0000000000000000"
    assert binding.mask((1, 64)) == "0x00000000000000010000000000000002"


def test_number_that_is_none_is_unknown() -> None:
    """A value of sysfs that is not a number is the one for unknown."""
    assert [files.number(text) for text in ("7", "-1", "", "x", "--1", "²", "9" * 30)] == [7, -1, -1, -1, -1, -1, -1]
