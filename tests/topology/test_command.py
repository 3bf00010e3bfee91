"""`echelon topology` and the room's own manners."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.topology import trees

import echelon
from echelon.cli import main, topology
from echelon.errors import UsageError
from echelon.topology import discover

MACHINES = (trees.lumi_g, trees.dgx_a100, trees.gh200, trees.v100, trees.workstation, trees.vm)
LUMI_PART = """\
nid005000: 1 socket, 64 cores, 128 hardware threads, 4 NUMA domains, 8 devices
allowed: 1-7,17-23 (14 of 64 cores)
not allowed: devices 0, 1, 3, 5, 6, 7

NUMA  CORES          ALLOWED  MEMORY   DEVICES
0     0-15,64-79     1-7      128 GiB  4 5
1     16-31,80-95    17-23    128 GiB  2 3
2     32-47,96-111   none     128 GiB  6 7
3     48-63,112-127  none     128 GiB  0 1

DEVICE  MODEL   PCI           CHIP  NUMA  MEMORY  NEAREST CORES  DISTANCE  NIC
0       ?       0000:c1:00.0  0     3     ?       not allowed    -         hsn0
1       ?       0000:c6:00.0  1     3     ?       not allowed    -         hsn0
2       gfx90a  0000:c9:00.0  2     1     64 GiB  17-23          10        hsn1
3       ?       0000:ce:00.0  3     1     ?       not allowed    -         hsn1
4       gfx90a  0000:d1:00.0  4     0     64 GiB  1-7            10        hsn2
5       ?       0000:d6:00.0  5     0     ?       not allowed    -         hsn2
6       ?       0000:d9:00.0  6     2     ?       not allowed    -         hsn3
7       ?       0000:de:00.0  7     2     ?       not allowed    -         hsn3

NIC   KIND       SPEED       NUMA  PCI           INTERFACE  STATE
hsn0  slingshot  200 Gbit/s  3     0000:c5:00.0  hsn0       up
hsn1  slingshot  200 Gbit/s  1     0000:cd:00.0  hsn1       up
hsn2  slingshot  200 Gbit/s  0     0000:d5:00.0  hsn2       up
hsn3  slingshot  200 Gbit/s  2     0000:dd:00.0  hsn3       up
nmn0  ethernet   1 Gbit/s    2     0000:94:00.0  nmn0       up
"""
LUMI_MATRIX = """\
   0    1    2    3    4    5    6    7
0  X    XG4  XG1  XG*  XG*  XG*  XG2  XG*
1  XG4  X    XG*  XG1  XG*  XG1  XG*  XG*
2  XG1  XG*  X    XG4  XG2  XG*  XG*  XG*
3  XG*  XG1  XG4  X    XG*  XG*  XG*  XG1
4  XG*  XG*  XG2  XG*  X    XG4  XG1  XG*
5  XG*  XG1  XG*  XG*  XG4  X    XG*  XG1
6  XG2  XG*  XG*  XG*  XG1  XG*  X    XG4
7  XG*  XG*  XG*  XG1  XG*  XG1  XG4  X
XG#: joined by # xGMI links (no number: not known)
XG*: xGMI by way of another device
"""


def test_table_of_an_allocation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table shows what the job has, and what it has not."""
    root = trees.lumi_g(tmp_path, cpus="1-7,17-23", devices=(2, 4))
    assert topology.main(["--root", str(root)]) == 0
    assert capsys.readouterr().out.startswith(LUMI_PART)


def test_matrix_of_a_lumi_g_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each pair of devices is shown with its links, or that there are none."""
    assert topology.main([f"--root={trees.lumi_g(tmp_path)}"]) == 0
    assert capsys.readouterr().out.endswith(LUMI_MATRIX)


def test_letters_of_pci(tmp_path: Path) -> None:
    """Without other links the letters say what of PCI two devices share."""
    dgx = discover.read(str(trees.dgx_a100(tmp_path / "dgx")), {})
    assert [topology.relation(dgx, dgx.devices[0], other) for other in dgx.devices[:3]] == ["X", "PIX", "SYS"]
    desk = discover.read(str(trees.workstation(tmp_path / "desk")), {})
    assert topology.relation(desk, *desk.devices) == "PHB"
    bare = [device._replace(pci_path="") for device in desk.devices]
    assert topology.relation(desk, *bare) == "?"
    assert topology.relation(desk, *(device._replace(numa=0) for device in bare)) == "NODE"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_json_is_the_node(machine: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The data are complete, versioned, and the same from the command and from a node's own answer."""
    root = str(machine(tmp_path))
    assert topology.main(["--json", "--root", root]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads(discover.dump(root, {}))
    assert list(shown) == ["format", "node", "cpus", "allowed", "numa", "devices", "nics", "links"]
    assert shown["format"] == 1


def test_json_of_a_device(tmp_path: Path) -> None:
    """A device's row says where it is, whose it is and which cores are its own."""
    shown = json.loads(discover.dump(str(trees.lumi_g(tmp_path)), {}))
    assert shown["devices"][1] == {
        "number": 1, "vendor": "amd", "model": "gfx90a", "pci": "0000:c6:00.0", "uuid": "GPU-4a7c19da00000001",
        "numa": 3, "cores": [57, 58, 59, 60, 61, 62, 63], "memory_bytes": 64 << 30, "chip": 0, "is_allowed": True,
        "nic": "hsn0",
    }  # fmt: skip
    assert shown["links"][0] == {"devices": [0, 1], "kind": "xgmi", "num_links": 4}
    assert shown["cpus"]["num_cores"] == 64
    assert shown["cpus"]["caches"][0] == "0-7,64-71"


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--jsn"], "no option --jsn", "did you mean --json?"),
        (["node"], "'node' is none", "echelon topology --help"),
        (["--root"], "--root needs a value", "echelon topology --root DIR"),
        (["--root", "missing"], "this directory does not exist", "--root"),
        (["--root", "."], "not a copy of a node", "DIR"),
        (["--json=1"], "--json takes no value", "--json"),
    ],
)
def test_bad_command_line(
    arguments: list[str], message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong is named, with what would be right."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        topology.main(arguments)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_help_ends_in_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """Help is shown on standard output."""
    assert main(["topology", "-h"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["example:", "  echelon topology --json"]


def test_this_machine_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the tests run on has cores that they may use."""
    assert topology.main([]) == 0
    assert "allowed: " in capsys.readouterr().out


def test_room_imports_little() -> None:
    """Every agent loads this room: none of the modules that take milliseconds come with it."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "from echelon.topology import binding, devices, discover\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    sources = str(Path(echelon.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {sources!r})\n{code}"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    # re and enum come with typing, which every room of the nodes has.
    assert not {"json", "dataclasses", "pathlib", "subprocess", "ctypes", "socket", "inspect", "logging"} & set(loaded)


PAGE = Path(__file__).parents[2] / "docs" / "topology.md"


def test_page_shows_the_table_of_an_allocation() -> None:
    """The page's example is what the command prints."""
    assert f"```text\n{LUMI_PART}```" in PAGE.read_text("utf-8")


def test_recipe_of_the_page_copies_a_node(tmp_path: Path) -> None:
    """What the page tells to copy is enough to read the same node elsewhere."""
    recipe = PAGE.read_text("utf-8").partition("```bash\n")[2].partition("```")[0]
    subprocess.run(["bash", "-c", recipe], cwd=tmp_path, check=False, timeout=120)
    here, copied = discover.read("/", {}), discover.read(str(tmp_path / "copy"), {})
    assert (copied.name, copied.cpus, copied.allowed) == (here.name, here.cpus, here.allowed)
    assert (copied.numa_distances, copied.nics) == (here.numa_distances, here.nics)
