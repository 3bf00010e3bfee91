"""Describe a private cluster and write its slurm.conf and gres.conf."""

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from .site import NodeKind, Site

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
TmpFS={folder}/spool/%n
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

# One parameter of gres.conf for each vendor, so that a task finds its devices in the right variable.
GRES_FLAGS = {"amd": " Flags=amd_gpu_env", "nvidia": " Flags=nvidia_gpu_env"}


@dataclass(frozen=True)
class Layout:
    """One private cluster as values: where it lives, its ports, its nodes."""

    site: Site
    folder: Path
    controller_port: int
    node_ports: tuple[int, ...]
    unused_port: int
    """Where nobody listens: the port of the nodes that have no slurmd."""
    task_plugin: str
    slurmd_timeout_seconds: int
    message_timeout_seconds: int

    @property
    def name(self) -> str:
        """Return the ClusterName: the imitated machine's, or one that is as unique as the folder."""
        return self.site.name or "".join(letter for letter in self.folder.name.lower() if letter.isalnum())

    @property
    def addresses(self) -> dict[str, str]:
        """Return the loopback address of each live node, by node name."""
        return {node: f"127.0.5.{index + 1}" for index, node in enumerate(self.site.live_nodes)}

    @property
    def conf(self) -> Path:
        """Return the path that SLURM_CONF names."""
        return self.folder / "slurm.conf"


def slurm_conf(layout: Layout) -> str:
    """Write the text of slurm.conf."""
    settings = SETTINGS.format(
        name=layout.name,
        host=_host(),
        controller_port=layout.controller_port,
        folder=layout.folder,
        task_plugin=layout.task_plugin,
        slurmd_timeout_seconds=layout.slurmd_timeout_seconds,
        message_timeout_seconds=layout.message_timeout_seconds,
    )
    lines = ["JobSubmitPlugins=lua"] if layout.site.submit_script else []
    ports = dict(zip(layout.addresses, layout.node_ports, strict=True))
    for kind in layout.site.kinds:
        hardware = _hardware(kind, enforced=layout.task_plugin == "task/affinity")
        lines += [_node(node, layout.addresses[node], ports[node], hardware) for node in kind.live_nodes]
        if kind.other_nodes:
            state = f"{hardware} State=DOWN Reason=imitated"
            lines.append(_node(kind.other_nodes, "127.0.0.1", layout.unused_port, state))
    return "\n".join([settings, *lines, *layout.site.partitions, ""])


def gres_conf(layout: Layout) -> str:
    """Write the text of gres.conf."""
    return "".join(_gres(kind, layout.folder) for kind in layout.site.kinds if kind.num_devices)


def write_files(layout: Layout) -> None:
    """Fill the cluster's folder: configuration, key, device files and empty folders."""
    layout.folder.chmod(0o755)
    for name in ("state", "spool", "log", *(f"spool/{node}" for node in layout.addresses)):
        (layout.folder / name).mkdir()
    layout.conf.write_text(slurm_conf(layout))
    (layout.folder / "gres.conf").write_text(gres_conf(layout))
    if layout.site.submit_script:
        (layout.folder / "job_submit.lua").write_text(layout.site.submit_script)
    for index in range(layout.site.num_devices):
        os.mknod(layout.folder / f"gpu{index}", 0o020666, os.makedev(1, 3))
    key = layout.folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))


def _host() -> str:
    return socket.gethostname().split(".")[0]


def _node(names: str, address: str, port: int, rest: str) -> str:
    return f"NodeName={names} NodeHostname={_host()} NodeAddr={address} Port={port} {rest}"


def _hardware(kind: NodeKind, *, enforced: bool) -> str:
    # Masks can only be enforced on cores that exist.
    cores, threads = (os.cpu_count() or 1, 1) if enforced else (kind.num_cores, kind.threads_per_core)
    words = [f"Sockets=1 CoresPerSocket={cores} ThreadsPerCore={threads} RealMemory={kind.memory_mib}"]
    if kind.reserved_cores and not enforced:
        # Slurm numbers the threads of one core one after another.
        reserved = [core * threads + thread for core in kind.reserved_cores for thread in range(threads)]
        words.append(f"CpuSpecList={','.join(map(str, reserved))}")
    if kind.num_devices:
        words.append(f"Gres={kind.gres}:{kind.num_devices}")
    if kind.features:
        words.append(f"Features={','.join(kind.features)}")
    return " ".join(words)


def _gres(kind: NodeKind, folder: Path) -> str:
    typed = f" Type={kind.gres_type}" if kind.gres_type else ""
    files = f"{folder}/gpu[0-{kind.num_devices - 1}]" if kind.num_devices > 1 else f"{folder}/gpu0"
    nodes = ",".join(kind.live_nodes)
    return f"NodeName={nodes} Name=gpu{typed} File={files}{GRES_FLAGS.get(kind.vendor, '')}\n"
