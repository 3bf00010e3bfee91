import os
import socket

import pytest

from echelon.environment import master, surroundings
from echelon.environment.errors import SurroundingError
from echelon.environment.frameworks import RankPlace

RECORDED_PLACES = {
    "srun-2x8-rank9": RankPlace(9, 16, 1, 8, 1, 2, "nid005000", 20002),
    "srun-uneven-rank6": RankPlace(6, 7, 0, 1, 2, 3, "nid005000", 20004),
    "srun-components-rank2": RankPlace(2, 3, 1, 2, 1, 2, "nid005000", 20018),
    "srun-pmi2-rank3": RankPlace(3, 4, 0, 1, 1, 2, "nid005000", 20008),
    "srun-second-step-rank0": RankPlace(0, 1, 0, 1, 0, 1, "127.0.0.1", 22030),
}


@pytest.mark.parametrize("name", RECORDED_PLACES)
def test_place_in_a_recorded_slurm_step(recorded, name):
    """A task of srun knows its place and rank 0's node from its variables alone."""
    environ = recorded(name)
    surrounding = surroundings.find(environ)
    assert surrounding.name == "Slurm"
    assert surrounding.place(environ) == RECORDED_PLACES[name]


@pytest.mark.parametrize("name", ["batch-script", "salloc-shell"])
def test_place_where_slurm_started_no_step(recorded, name):
    """A batch script has SLURM_PROCID=0 and SLURM_NTASKS=4, and is one rank nevertheless."""
    environ = recorded(name)
    place = surroundings.find(environ).place(environ)
    assert place[:6] == (0, 1, 0, 1, 0, 1)
    assert place.master_addr == "127.0.0.1"


@pytest.mark.parametrize("step", ["4294967291", "4294967290", "4294967292", ""])
def test_place_in_a_special_step(recorded, step):
    """The step ids of batch scripts, of salloc's shell and of extern are no srun steps."""
    environ = {**recorded("srun-2x8-rank9"), "SLURM_STEP_ID": step, "SLURM_STEPID": step}
    assert surroundings.find(environ).place(environ).world_size == 1


def test_port_of_two_steps_and_two_jobs(recorded):
    """Steps of one job and neighbouring jobs get ports of their own, below the ephemeral range."""
    environ = recorded("srun-2x8-rank9")
    ports = set()
    for job, step in [("1", "0"), ("1", "1"), ("2", "0"), ("4999", "2")]:
        changed = {**environ, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step}
        ports.add(surroundings.find(changed).place(changed).master_port)
    assert len(ports) == 4
    assert all(20000 <= port < 30000 for port in ports)


def test_place_with_the_users_address_and_port(recorded):
    """MASTER_ADDR and MASTER_PORT of the user win."""
    environ = {**recorded("srun-2x8-rank9"), "MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "12345"}
    place = surroundings.find(environ).place(environ)
    assert (place.master_addr, place.master_port) == ("10.1.1.1", 12345)


@pytest.mark.parametrize("port", ["x", "0", "70000", "-1", "²"])
def test_place_with_a_port_that_is_none(recorded, port):
    """A MASTER_PORT that cannot be one is refused with its value."""
    environ = {**recorded("srun-2x8-rank9"), "MASTER_PORT": port}
    with pytest.raises(SurroundingError, match="MASTER_PORT=") as caught:
        surroundings.find(environ).place(environ)
    assert caught.value.hint == "unset MASTER_PORT"


@pytest.mark.parametrize("name", ["srun-arbitrary-rank0", "srun-arbitrary-rank1"])
def test_master_with_arbitrary_distribution(recorded, tmp_path, name):
    """With a host file, rank 0's node is the file's first line, not the first of the sorted list."""
    hosts = tmp_path / "hosts"
    hosts.write_text("nid005001\nnid005000*2\n")
    environ = {**recorded(name), "SLURM_HOSTFILE": str(hosts)}
    assert surroundings.find(environ).place(environ).master_addr == "nid005001"


@pytest.mark.parametrize("hosts", ["", "/nowhere/hosts"])
def test_master_with_arbitrary_distribution_and_no_host_file(recorded, hosts):
    """Where the order of the hosts cannot be known, there is an error and no guess."""
    environ = {**recorded("srun-arbitrary-rank1"), "SLURM_HOSTFILE": hosts}
    with pytest.raises(SurroundingError, match="arbitrary") as caught:
        surroundings.find(environ).place(environ)
    assert "MASTER_ADDR" in caught.value.hint


def test_master_when_rank_0_is_not_on_the_first_node(recorded):
    """Rank 0 itself refuses to be looked for on another node."""
    environ = recorded("srun-arbitrary-rank0")
    del environ["SLURM_DISTRIBUTION"]
    with pytest.raises(SurroundingError, match=r"node 1 of the step \(nid005001\).*node 0 \(nid005000\)"):
        surroundings.find(environ).place(environ)


@pytest.mark.parametrize(
    "change",
    [{"SLURM_STEP_TASKS_PER_NODE": "8"}, {"SLURM_NODEID": "2"}, {"SLURM_LOCALID": "8"}],
    ids=lambda change: next(iter(change)),
)
def test_place_from_variables_that_disagree(recorded, change):
    """Counts that do not hold this task are shown beside what the task says of itself."""
    environ = {**recorded("srun-2x8-rank9"), **change}
    with pytest.raises(SurroundingError, match="disagree"):
        surroundings.find(environ).place(environ)


def test_place_from_a_missing_variable(recorded):
    """A launcher's variable that was filtered away is named."""
    environ = recorded("srun-2x8-rank9")
    del environ["SLURM_LOCALID"]
    with pytest.raises(SurroundingError, match="SLURM_LOCALID"):
        surroundings.find(environ).place(environ)


# Open MPI 4 as in its own mailing list's listings; addresses from RFC 5737.
ORTE = {
    "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_NODE_RANK": "1", "OMPI_UNIVERSE_SIZE": "8",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://192.0.2.1,198.51.100.1:34911",
    "OMPI_MCA_orte_ess_jobid": "1531576321", "OMPI_MCA_ess": "^singleton", "PMIX_RANK": "5",
}  # fmt: skip


def _ompi(rank: int, host: str) -> dict[str, str]:
    local = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % 4)}
    return {**ORTE, **local, "OMPI_MCA_orte_hnp_uri": f"1531576320.0;tcp://{host}:34911"}


def test_place_under_mpirun_4_inside_of_a_slurm_step(recorded):
    """mpirun's ranks are Open MPI's, although their daemon is a Slurm task with a SLURM_PROCID."""
    environ = {**recorded("srun-second-step-rank0"), **ORTE}
    surrounding = surroundings.find(environ)
    assert surrounding.name == "Open MPI"
    assert surrounding.place(environ)[:7] == (5, 8, 1, 4, 1, 2, "192.0.2.1")


def test_port_under_mpirun_is_the_same_in_all_ranks():
    """All ranks of one mpirun derive one port, and another mpirun derives another."""
    environs = [_ompi(rank, "127.0.0.1") for rank in range(8)]
    ports = {surroundings.find(environ).place(environ).master_port for environ in environs}
    other = {**_ompi(0, "127.0.0.1"), "OMPI_MCA_orte_ess_jobid": "77"}
    assert len(ports) == 1
    assert surroundings.find(other).place(other).master_port not in ports


def test_address_under_mpirun_5():
    """Open MPI 5 names the host of mpirun in its namespace only."""
    environ = {name: text for name, text in ORTE.items() if "orte" not in name}
    environ.update(PRTE_LAUNCHED="1", PMIX_NAMESPACE="prterun-gpu-node-18-12345@1")
    assert surroundings.find(environ).place(environ).master_addr == "gpu-node-18"


def test_rank_0_elsewhere_than_mpirun():
    """Rank 0 that does not run where mpirun does refuses the address that the others would take."""
    with pytest.raises(SurroundingError, match=r"192\.0\.2\.1") as caught:
        surroundings.OpenMpi().place(_ompi(0, "192.0.2.1"))
    assert f"MASTER_ADDR={os.uname().nodename}" in caught.value.hint


def test_address_under_an_unknown_mpirun():
    """An mpirun that does not say where it runs needs MASTER_ADDR as soon as there are two nodes."""
    environ = {name: text for name, text in ORTE.items() if "orte" not in name}
    with pytest.raises(SurroundingError, match="which of the 2 nodes") as caught:
        surroundings.find(environ).place(environ)
    assert "MASTER_ADDR" in caught.value.hint
    assert surroundings.find(environ).place({**environ, "MASTER_ADDR": "a"}).master_addr == "a"


def test_place_under_mpirun_by_node():
    """Ranks dealt out to the nodes in turn are refused: their nodes cannot be told."""
    environ = {**ORTE, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    with pytest.raises(SurroundingError, match="rank 1 of 8 cannot be local rank 0 of 4"):
        surroundings.find(environ).place(environ)


HYDRA = {
    "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9",
    "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "GFORTRAN_UNBUFFERED_PRECONNECTED": "y",
}  # fmt: skip


def test_place_under_mpiexec_inside_of_a_slurm_step(recorded):
    """Hydra's ranks are PMI's, and rank 0 is on the first node of the allocation."""
    environ = {**recorded("srun-uneven-rank6"), **HYDRA}
    surrounding = surroundings.find(environ)
    assert surrounding.name == "mpiexec"
    assert surrounding.place(environ)[:7] == (3, 4, 1, 2, 1, 2, "nid005000")


def test_place_under_mpiexec_on_one_node():
    """One node needs no address."""
    environ = {**HYDRA, "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}
    assert surroundings.find(environ).place(environ)[:7] == (3, 4, 3, 4, 0, 1, "127.0.0.1")


PALS = {
    "PALS_RANKID": "13", "PALS_NODEID": "1", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "12",
    "PALS_APID": "7a9d5b4e", "PMI_RANK": "13", "PMI_SIZE": "24", "PMI_LOCAL_RANK": "1",
    "PMI_LOCAL_SIZE": "12", "PMI_UNIVERSE_SIZE": "24",
}  # fmt: skip


def test_place_under_cray_pals():
    """Cray's mpiexec outside of Slurm gives all numbers, and no address."""
    environ = {**PALS, "MASTER_ADDR": "x1000c0s0b0n0"}
    surrounding = surroundings.find(environ)
    assert surrounding.place(environ)[:7] == (13, 24, 1, 12, 1, 2, "x1000c0s0b0n0")
    with pytest.raises(SurroundingError, match="MASTER_ADDR is not set"):
        surrounding.place(PALS)


def test_place_under_pmi_without_local_ranks():
    """PMI alone does not say which rank of its node a process is: no guess."""
    environ = {"PMI_RANK": "3", "PMI_SIZE": "8"}
    with pytest.raises(SurroundingError, match="no local rank"):
        surroundings.find(environ).place(environ)


def test_slurm_comes_before_its_own_pmi(recorded):
    """On a Cray, srun sets PALS_ and PMI_ variables too; Slurm knows the nodes."""
    environ = {**PALS, **recorded("srun-2x8-rank9")}
    assert surroundings.find(environ).name == "Slurm"


TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "41779", "TORCHELASTIC_RUN_ID": "abc",
}  # fmt: skip


def test_place_under_torchrun():
    """torchrun's own variables are the place."""
    surrounding = surroundings.find(TORCHRUN)
    assert surrounding.place(TORCHRUN) == RankPlace(5, 8, 1, 4, 1, 2, "n1", 41779)
    assert surrounding.run_id(TORCHRUN) == "abc"


def test_place_under_torchrun_as_the_only_task_of_a_node(recorded):
    """One torchrun per node inside of srun: the ranks are torchrun's, not Slurm's."""
    environ = {**recorded("srun-pmi2-rank3"), **TORCHRUN}
    for name in ("PMI_RANK", "PMI_SIZE"):
        del environ[name]
    assert surroundings.find(environ).place(environ).rank == 5


def test_place_under_deepspeeds_launcher():
    """DeepSpeed names nodes CROSS and has no LOCAL_WORLD_SIZE."""
    environ = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_SIZE": "4", "CROSS_RANK": "1",
        "CROSS_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500",
    }  # fmt: skip
    assert surroundings.find(environ).place(environ) == RankPlace(5, 8, 1, 4, 1, 2, "n1", 29500)


@pytest.mark.parametrize(
    "stale",
    [
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
        {"RANK": "9", "WORLD_SIZE": "16"},
        {"WORLD_SIZE": "2"},
    ],
)
def test_rank_exported_by_the_batch_script(recorded, stale):
    """What the batch script exported reaches all tasks alike and is not believed."""
    environ = {**recorded("srun-2x8-rank9"), **stale}
    assert surroundings.find(environ).place(environ)[:6] == (9, 16, 1, 8, 1, 2)


def test_rank_and_world_size_without_local_rank():
    """Half a description is named as such."""
    environ = {"RANK": "1", "WORLD_SIZE": "2"}
    with pytest.raises(SurroundingError, match="LOCAL_RANK is not"):
        surroundings.find(environ).place(environ)


def test_order_begins_with_what_is_said_and_ends_with_being_alone():
    """Every surrounding stands once in the order, and the last one is always there."""
    names = [surrounding.name for surrounding in surroundings.ORDER]
    assert names == ["the environment", "Open MPI", "mpiexec", "Slurm", "PMI", "nobody"]
    assert surroundings.find({}).name == "nobody"


def test_mpi_identity_of_an_agent(recorded):
    """The names that an MPI library takes for its own are found, and no others."""
    environ = {**recorded("srun-pmi2-rank3"), **ORTE, "OMPI_MCA_btl": "tcp", "PATH": "/bin"}
    names = surroundings.mpi_identity(environ)
    assert {"PMI_RANK", "PMI_SIZE", "PMI_FD", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"} <= set(names)
    assert not {"PATH", "OMPI_MCA_btl", "SLURM_PROCID"} & set(names)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", os.uname().nodename])
def test_is_here_for_a_name_of_this_node(host):
    """Each way to name this node is recognised."""
    assert master.is_here(host)


def test_is_here_for_another_node(monkeypatch):
    """An address that this node does not have, or a name without one, is elsewhere."""
    assert not master.is_here("192.0.2.1")

    def unknown(*args, **kwargs):
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert not master.is_here("no-such-node")
