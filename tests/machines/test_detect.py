"""Which machine this is: by name, by cluster, by login host, by asking Slurm, in this order."""

import pytest
from tests.machines.asking import SlowHost, host, refused, said

from echelon.errors import UsageError
from echelon.host import Host, RecordedHost
from echelon.machines import detect
from echelon.machines.detect import Detected

EMPTY = {"HOME": "/nonexistent"}
NO_SLURM = RecordedHost(environ={}, answers={})


def slurm_called(cluster: str) -> Host:
    return host("22.05", config=said(f"ClusterName             = {cluster}\n"))


@pytest.mark.parametrize(
    ("environ", "machine", "hostname", "name", "how"),
    [
        ({"ECHELON_MACHINE": "roihu"}, slurm_called("lumi"), "x", "roihu", "ECHELON_MACHINE is roihu"),
        ({"ECHELON_MACHINE": "local"}, NO_SLURM, "x", "local", "ECHELON_MACHINE is local"),
        ({"SLURM_CLUSTER_NAME": "lumi"}, NO_SLURM, "roihu-gpu1", "lumi", "Slurm's cluster name is lumi"),
        ({"SLURM_CLUSTER_NAME": "Mahti"}, NO_SLURM, "g1101", "mahti", "Slurm's cluster name is Mahti"),
        (
            {}, NO_SLURM, "roihu-gpu1.csc.fi", "roihu",
            "this host is called roihu-gpu1.csc.fi, as login nodes of roihu are (roihu-gpu*)",
        ),
        ({}, slurm_called("hipergator"), "login3", "hipergator", "Slurm's cluster name is hipergator"),
    ],
)  # fmt: skip
def test_machine_is_recognised_and_says_how(
    environ: dict[str, str], machine: Host, hostname: str, name: str, how: str
) -> None:
    """The first sign that fits decides, and is told in a sentence."""
    found = detect.detect({**EMPTY, **environ}, machine, hostname)
    assert found == Detected(machine_name=name, how=how)


@pytest.mark.parametrize(
    ("environ", "machine", "remark"),
    [
        ({}, NO_SLURM, "scontrol is not installed here: no cluster name to go by"),
        ({}, SlowHost(), "scontrol did not answer within 3 s: no cluster name to go by"),
        ({}, host("22.05", config=refused("no controller")), "scontrol show config ended with 1: no controller"),
        ({}, slurm_called("summit"), "Slurm's cluster name is summit, which no machine file has"),
        ({"SLURM_CLUSTER_NAME": "summit"}, NO_SLURM, "echelon machines learn writes one"),
    ],
)
def test_unknown_machine_is_none_with_a_remark(environ: dict[str, str], machine: Host, remark: str) -> None:
    """Where nothing fits there is no machine, and a sentence says what was looked at."""
    found = detect.recognise({**EMPTY, **environ}, machine, "laptop")
    assert found.found is None
    assert remark in found.remarks[0]


def test_cluster_without_a_name_is_nothing() -> None:
    """A Slurm that gives its cluster no name is no sign."""
    assert detect.detect(EMPTY, slurm_called("(null)"), "laptop") is None


def test_machine_of_the_environment_must_be_known() -> None:
    """ECHELON_MACHINE with an unknown name is an error with the nearest ones."""
    with pytest.raises(UsageError, match=r"echelon knows no machine 'lummi'; did you mean lumi"):
        detect.detect({**EMPTY, "ECHELON_MACHINE": "lummi"}, NO_SLURM, "laptop")


def test_nobody_is_asked_where_the_environment_says_it() -> None:
    """Inside a job no process is started to know the machine."""
    host = RecordedHost(environ={}, answers={})
    detect.detect({**EMPTY, "SLURM_CLUSTER_NAME": "lumi"}, host, "nid005000")
    assert host.asked == []
