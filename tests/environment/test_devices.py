import subprocess
import sys
from pathlib import Path

import pytest

import echelon
from echelon.environment import devices
from echelon.environment.errors import DeviceError


def test_visible_on_a_node_without_devices(tmp_path):
    """No device files and no filter: no device."""
    assert devices.visible({}, str(tmp_path)) == []


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, ["0", "1", "2", "3"]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, ["2", "0"]),
        ({"CUDA_VISIBLE_DEVICES": " 1 , 3 "}, ["1", "3"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, ["1"]),
        ({"CUDA_VISIBLE_DEVICES": "1,1"}, []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5ebe9f43,GPU-a1"}, ["GPU-5ebe9f43", "GPU-a1"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-7c1a/1/0"}, ["MIG-7c1a/1/0"]),
        ({"ROCR_VISIBLE_DEVICES": "0"}, ["0", "1", "2", "3"]),
    ],
)
def test_visible_on_an_nvidia_node(nvidia_tree, environ, seen):
    """CUDA's variable filters as the driver does, and AMD's does not count."""
    assert devices.visible(environ, nvidia_tree(4)) == seen


def test_visible_before_the_device_files_are_made(tmp_path):
    """A loaded driver's list of cards counts where /dev has none yet."""
    for name in ("0000:07:00.0", "0000:0f:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    assert devices.visible({}, str(tmp_path)) == ["0", "1"]


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, [str(index) for index in range(8)]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,2,3"}, ["4", "5", "2", "3"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"}, ["5"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "1,0"}, ["5", "4"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "4,5"}, []),
        ({"HIP_VISIBLE_DEVICES": "7", "CUDA_VISIBLE_DEVICES": "0"}, ["7"]),
        ({"CUDA_VISIBLE_DEVICES": "6"}, ["6"]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "GPU-e56,3"}, ["GPU-e56", "3"]),
    ],
)
def test_visible_on_an_amd_node(amd_tree, environ, seen):
    """ROCr filters first, and HIP counts in what is left; CPU nodes of KFD are no devices."""
    assert devices.visible(environ, str(amd_tree(8))) == seen


def test_visible_where_the_cgroup_hides_devices(amd_tree):
    """KFD nodes that read as empty or not at all belong to somebody else's job."""
    root = amd_tree(8)
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    (nodes / "5/properties").write_text("")
    (nodes / "6/gpu_id").write_text("0\n")
    (nodes / "7/properties").unlink()
    (nodes / "7/properties").mkdir()  # an open that fails, also for root
    assert devices.visible({}, str(root)) == ["0", "1", "2", "3", "4"]


def test_visible_of_an_nvidia_card_beside_a_processors_graphics(nvidia_tree, amd_tree):
    """A laptop's graphics is a KFD node too; the card is what one trains on."""
    amd_tree(1)
    root = nvidia_tree(1)
    assert devices.only({}, 0, root)["CUDA_VISIBLE_DEVICES"] == "0"
    assert devices.only({"ROCR_VISIBLE_DEVICES": "0"}, 0, root)["ROCR_VISIBLE_DEVICES"] == "0"


def test_visible_in_a_recorded_slurm_step(recorded, tmp_path):
    """Where no device file can be seen, Slurm's word on the devices is taken."""
    assert devices.visible(recorded("srun-2x8-rank9"), str(tmp_path)) == [str(index) for index in range(8)]


def test_only_on_an_nvidia_node(nvidia_tree):
    """The rank sees the device of its local rank, in the order that was visible, as number 0."""
    assert devices.only({"CUDA_VISIBLE_DEVICES": "3,1"}, 1, nvidia_tree(4)) == {
        "CUDA_VISIBLE_DEVICES": "1",
        "LOCAL_RANK": "0",
        "JAX_LOCAL_DEVICE_IDS": "0",
        "ECHELON_LOCAL_RANK": "1",
    }


def test_only_on_an_amd_node(amd_tree):
    """ROCr's filter alone remains, so that no second one counts in what is left."""
    environ = {"ROCR_VISIBLE_DEVICES": "4,5,2,3", "HIP_VISIBLE_DEVICES": "2,3"}
    assert devices.only(environ, 1, str(amd_tree(8))) == {
        "ROCR_VISIBLE_DEVICES": "3",
        "HIP_VISIBLE_DEVICES": None,
        "CUDA_VISIBLE_DEVICES": None,
        "GPU_DEVICE_ORDINAL": None,
        "LOCAL_RANK": "0",
        "JAX_LOCAL_DEVICE_IDS": "0",
        "ECHELON_LOCAL_RANK": "1",
    }


def test_only_gives_every_rank_another_device(amd_tree):
    """Applied once, each rank sees exactly one device, and all devices are used."""
    root = str(amd_tree(8))
    own = []
    for local_rank in range(8):
        changes = devices.only({"ROCR_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}, local_rank, root)
        own += devices.visible({name: text for name, text in changes.items() if text is not None}, root)
    assert own == ["7", "6", "5", "4", "3", "2", "1", "0"]


def test_only_where_ranks_may_share(nvidia_tree):
    """Ranks in excess of the devices have them in turns, where that is meant, and are refused where it is not."""
    root = nvidia_tree(2)
    shared = [devices.only({}, rank, root, may_share=True)["CUDA_VISIBLE_DEVICES"] for rank in range(4)]
    assert shared == ["0", "1", "0", "1"]
    with pytest.raises(DeviceError, match="local rank 2 has no device"):
        devices.only({}, 2, root)


def test_only_where_the_task_has_one_device_already(nvidia_tree):
    """With one device per task, local rank 3 has that one."""
    changes = devices.only({"CUDA_VISIBLE_DEVICES": "2"}, 3, nvidia_tree(4))
    assert (changes["CUDA_VISIBLE_DEVICES"], changes["ECHELON_LOCAL_RANK"]) == ("2", "3")


def test_only_for_more_ranks_than_devices(nvidia_tree):
    """A rank without a device is told both numbers and the devices."""
    with pytest.raises(DeviceError, match=r"local rank 2 .* 2 devices are visible \(0,1\)") as caught:
        devices.only({}, 2, nvidia_tree(2))
    assert "--visible all" in caught.value.hint


def test_only_on_a_node_without_devices(tmp_path):
    """On the CPU there is nothing to hide, and LOCAL_RANK stays."""
    assert devices.only({}, 1, str(tmp_path)) == {}


AUDIT = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from echelon.environment import devices
print(devices.visible({}, sys.argv[1]), [path for path in opened if path.startswith(sys.argv[1])])
"""


def test_no_device_file_is_opened(nvidia_tree):
    """Looking for devices wakes no driver: what is there is looked at, not opened."""
    root = nvidia_tree(2)
    source = str(Path(echelon.__file__).parents[1])
    command = [sys.executable, "-c", AUDIT, root]
    environ = {"PYTHONPATH": source}
    output = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    assert output == "['0', '1'] []\n"


def test_some_devices_of_a_node_whose_filters_stack(amd_tree):
    """The devices are counted as they are seen, and the lowest filter alone names them."""
    environ = {"ROCR_VISIBLE_DEVICES": "4,5,2,3", "HIP_VISIBLE_DEVICES": "3,2,1"}
    root = amd_tree(8)
    shown = devices.some(environ, 1, 2, root)
    assert {name: value for name, value in shown.items() if value is not None} == {"ROCR_VISIBLE_DEVICES": "2,5"}
    assert shown["HIP_VISIBLE_DEVICES"] is None
    with pytest.raises(DeviceError, match=r"devices 2 to 3 are asked for, but only 3 are visible here \(3,2,5\)"):
        devices.some(environ, 2, 2, root)
