"""Describe a private cluster and write its slurm.conf and gres.conf."""

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

NUM_CORES = 64
NUM_DEVICES = 8
MEMORY_MIB = 480 * 1024
# As on LUMI-G: the first core of each of the eight core complexes is kept for the operating system.
RESERVED_CORES = "0,8,16,24,32,40,48,56"
MAX_NODES = 16

SETTINGS = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
CommunicationParameters=NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
GresTypes=gpu
KillWait=5
SlurmdTimeout={slurmd_timeout_seconds}
MessageTimeout={message_timeout_seconds}
SlurmctldTimeout=10
InactiveLimit=0
MinJobAge=300
ReturnToService=1
EnforcePartLimits=ALL
JobRequeue=1
"""

# Limits as LUMI documents them; the memory per core is ours, so that small jobs can share a node.
PARTITIONS = """\
PartitionName=small-g Nodes=ALL Default=YES MaxNodes=4 MaxTime=3-00:00:00 DefaultTime=01:00:00 \
DefMemPerCPU={core_memory_mib}
PartitionName=standard-g Nodes=ALL MaxNodes=1024 MaxTime=2-00:00:00 DefaultTime=01:00:00 \
OverSubscribe=EXCLUSIVE
PartitionName=dev-g Nodes=ALL MaxNodes=32 MaxTime=03:00:00 DefaultTime=00:30:00 DefMemPerCPU={core_memory_mib}
"""


@dataclass(frozen=True)
class Layout:
    """One private cluster as values: where it lives, its ports, its nodes."""

    folder: Path
    controller_port: int
    node_ports: tuple[int, ...]
    task_plugin: str
    slurmd_timeout_seconds: int
    message_timeout_seconds: int

    @property
    def name(self) -> str:
        """Return the ClusterName, which is as unique as the folder."""
        return "".join(letter for letter in self.folder.name.lower() if letter.isalnum())

    @property
    def addresses(self) -> dict[str, str]:
        """Return the loopback address of each node, by node name."""
        return {f"nid{5000 + index:06d}": f"127.0.5.{index + 1}" for index in range(len(self.node_ports))}

    @property
    def conf(self) -> Path:
        """Return the path that SLURM_CONF names."""
        return self.folder / "slurm.conf"


def slurm_conf(layout: Layout) -> str:
    """Write the text of slurm.conf."""
    host = socket.gethostname().split(".")[0]
    enforced = layout.task_plugin == "task/affinity"
    # Masks can only be enforced on cores that exist.
    num_cores = (os.cpu_count() or 1) if enforced else NUM_CORES
    reserved = "" if enforced else f" CpuSpecList={RESERVED_CORES}"
    lines = [
        SETTINGS.format(
            name=layout.name,
            host=host,
            controller_port=layout.controller_port,
            folder=layout.folder,
            task_plugin=layout.task_plugin,
            slurmd_timeout_seconds=layout.slurmd_timeout_seconds,
            message_timeout_seconds=layout.message_timeout_seconds,
        )
    ]
    lines += [
        f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={port} Sockets=1 "
        f"CoresPerSocket={num_cores} ThreadsPerCore=1 RealMemory={MEMORY_MIB}{reserved} "
        f"Gres=gpu:mi250:{NUM_DEVICES}\n"
        for (node, address), port in zip(layout.addresses.items(), layout.node_ports, strict=True)
    ]
    return "".join([*lines, PARTITIONS.format(core_memory_mib=MEMORY_MIB // num_cores)])


def gres_conf(layout: Layout) -> str:
    """Write the text of gres.conf."""
    return f"Name=gpu Type=mi250 File={layout.folder}/gpu[0-{NUM_DEVICES - 1}] Flags=amd_gpu_env\n"


def write_files(layout: Layout) -> None:
    """Fill the cluster's folder: configuration, key, device files and empty folders."""
    layout.folder.chmod(0o755)
    for name in ("state", "spool", "log", *(f"spool/{node}" for node in layout.addresses)):
        (layout.folder / name).mkdir()
    layout.conf.write_text(slurm_conf(layout))
    (layout.folder / "gres.conf").write_text(gres_conf(layout))
    for index in range(NUM_DEVICES):
        os.mknod(layout.folder / f"gpu{index}", 0o020666, os.makedev(1, 3))
    key = layout.folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
