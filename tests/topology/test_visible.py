"""Which devices a process sees, by the filters of its environment."""

from pathlib import Path

import pytest
from tests.topology import trees
from tests.topology.conftest import Reader

from echelon.environment import devices
from echelon.topology.devices import visible

SECOND = "GPU-4a7c19da00000001"


@pytest.mark.parametrize(
    ("environ", "numbers"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, [4, 5]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "2,0"}, [6, 4]),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "1"}, [5]),
        ({"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1"}, [3]),
        ({"ROCR_VISIBLE_DEVICES": f"7,{SECOND}"}, [7, 1]),
        ({"ROCR_VISIBLE_DEVICES": "0,9,1"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "1,1"}, []),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, []),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_filters_of_amd(read: Reader, environ: dict[str, str], numbers: list[int]) -> None:
    """ROCr filters first, HIP counts in what is left, and identifiers name a device wherever it is."""
    assert [device.number for device in visible(read(trees.lumi_g), environ)] == numbers


def test_indices_count_what_the_cgroup_allows(read: Reader) -> None:
    """In a job with devices 2 and 4, device 1 is the node's number 4, and a hidden one cannot be named."""
    node = read(trees.lumi_g, devices=(2, 4))
    assert [device.number for device in visible(node, {"ROCR_VISIBLE_DEVICES": "1"})] == [4]
    assert visible(node, {"ROCR_VISIBLE_DEVICES": SECOND}) == []


@pytest.mark.parametrize(
    ("text", "numbers"), [("3,1", [3, 1]), (trees.uuid(5), [5]), ("GPU-00000006", [6]), ("GPU-0", []), ("8", [])]
)
def test_filter_of_nvidia(read: Reader, text: str, numbers: list[int]) -> None:
    """CUDA takes indices, identifiers, and as much of one as makes it unique; it knows no ROCr."""
    node = read(trees.dgx_a100)
    environ = {"CUDA_VISIBLE_DEVICES": text, "ROCR_VISIBLE_DEVICES": "0"}
    assert [device.number for device in visible(node, environ)] == numbers


@pytest.mark.parametrize("text", [None, "2,0", "1", "0,9", "3,3", ""])
def test_agrees_with_what_the_ranks_environment_counts(read: Reader, text: str | None, tmp_path: Path) -> None:
    """The launcher's count of devices and the topology's are one."""
    environ = {} if text is None else {"ROCR_VISIBLE_DEVICES": text}
    node = read(trees.lumi_g, devices=(1, 3, 5, 7))
    allowed = [device for device in node.devices if device.is_allowed]
    counted = [str(allowed.index(device)) for device in visible(node, environ)]
    assert devices.visible(environ, str(tmp_path / "lumi_g")) == counted
