"""The options by which `echelon plan` and `echelon submit` ask for devices, nodes, time and money."""

from __future__ import annotations

import datetime
import os
import re
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from echelon import units
from echelon.cli.options import Option
from echelon.errors import UsageError
from echelon.spec import Request

if TYPE_CHECKING:
    from echelon.host import Host
    from echelon.machines.machine import Machine


def machine_names() -> tuple[str, ...]:
    """Return the names of the known machines, and "local"."""
    from echelon.machines import load

    return load.names(os.environ)


RESOURCES: tuple[Option, ...] = (
    Option(names=("-G", "--gpus"), value="N", help="the total number of devices: 1, 8, 16 …"),
    Option(
        names=("-N", "--nodes"), value="N", help="nodes: whole nodes, or with --gpus the nodes that share these devices"
    ),
    Option(names=("--gpus-per-node",), value="N", help="devices of each node, as in Slurm"),
    Option(names=("--exclusive",), help="use the nodes for this job alone"),
    Option(names=("-t", "--time"), value="TIME", help=f"the time limit: {units.TIMES}"),
    Option(names=("-p", "--partition"), value="NAME", help="use this partition (default: the cheapest that fits)"),
    Option(names=("--chip",), value="NAME", help="use nodes with this chip, if a machine has several chips"),
    Option(names=("--cores-per-gpu",), value="N", help="cores of each rank (default: its fair share)"),
    Option(names=("--cpus-per-task",), value="N", help="CPUs of each rank, as in Slurm with one task per rank"),
    Option(names=("--mem-per-gpu",), value="SIZE", help="memory of each rank, 60G (default: its fair share)"),
    Option(names=("--mem",), value="SIZE", help="memory of each node, as in Slurm"),
    Option(names=("-A", "--account"), value="NAME", help="whom to bill"),
    Option(names=("--qos",), value="NAME", help="Slurm's quality of service"),
    Option(names=("--reservation",), value="NAME", help="a reservation, for a course or a demonstration"),
    Option(
        names=("--global-batch",),
        value="N",
        help="samples of one step over all ranks: each rank gets its part as an argument",
    ),
    Option(
        names=("--machine",),
        value="NAME",
        choices=machine_names,
        help="the machine to plan for (default: the machine you are on)",
    ),
)

DEFAULT_MINUTES = 60


def read_request(values: Mapping[str, str], environ: Mapping[str, str]) -> Request:
    """Return the resources that the options ask for; raise UsageError for an invalid value."""
    from echelon.scheduler.slurm.allocation import account

    for option, other in (("mem", "mem_per_gpu"), ("cpus_per_task", "cores_per_gpu")):
        if option in values and other in values:
            both = f"--{option} and --{other}".replace("_", "-")
            raise UsageError(f"{both} set the same value", hint=f"remove --{other.replace('_', '-')}")
    return Request(
        num_devices=_whole(values, "gpus", "--gpus"),
        num_nodes=_whole(values, "nodes", "--nodes"),
        whole_nodes="exclusive" in values,
        partition=_name(values, "partition"),
        chip=_name(values, "chip"),
        minutes=units.minutes(values["time"]) if "time" in values else DEFAULT_MINUTES,
        cores_per_device=_whole(values, "cores_per_gpu", "--cores-per-gpu"),
        devices_per_node=_whole(values, "gpus_per_node", "--gpus-per-node"),
        cpus_per_rank=_whole(values, "cpus_per_task", "--cpus-per-task"),
        memory_bytes_per_device=_memory(values, "mem_per_gpu", "--mem-per-gpu"),
        memory_bytes_per_node=_memory(values, "mem", "--mem"),
        account=_name(values, "account") or account(environ),
        qos=_name(values, "qos"),
        reservation=_name(values, "reservation"),
        global_batch=_whole(values, "global_batch", "--global-batch"),
    )


def read_machine(values: Mapping[str, str], host: Host) -> tuple[Machine, str]:
    """Return the named machine, or else the current machine, and how it was recognised."""
    from echelon.machines import load
    from echelon.machines.detect import recognise

    if "machine" in values:
        return load.find(values["machine"], host.environ), "as asked"
    recognition = recognise(host.environ, host, socket.gethostname())
    detected = recognition.found
    if detected is None:
        known = ", ".join(sorted(load.load_all(host.environ)))
        remarks = "".join(f" ({remark})" for remark in recognition.remarks)
        raise UsageError(
            f"echelon does not know this machine; the known machines are {known}{remarks}",
            hint="--machine NAME   or, where Slurm is installed: echelon machines learn",
        )
    return load.find(detected.machine_name, host.environ), detected.how


def successor(machine: Machine, host: Host) -> Machine | None:
    """Return the machine that replaced a retired machine, if echelon knows it."""
    from echelon.machines import load

    return load.load_all(host.environ).get(machine.successor)


def today() -> datetime.date:
    """Return today's date in this machine's time zone."""
    return datetime.datetime.now(tz=datetime.timezone.utc).astimezone().date()


def projects() -> tuple[str, ...]:
    """Return the user's groups that look like projects: most sites bill those."""
    import grp

    names = []
    for number in os.getgroups():
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:
            continue  # a group that has no name on this node
    return tuple(sorted(name for name in names if name.startswith("project")))


def _whole(values: Mapping[str, str], key: str, option: str) -> int:
    text = values.get(key)
    if text is None:
        return 0
    if not re.fullmatch(r"[0-9]{1,7}", text) or int(text) == 0:
        raise UsageError(f"{option} {text or repr('')}: give a whole number of at least 1", hint=f"{option} 1")
    return int(text)


def _memory(values: Mapping[str, str], key: str, option: str) -> int:
    return units.size_bytes(values[key], option=option) if key in values else 0


def _name(values: Mapping[str, str], key: str) -> str:
    text = values.get(key, "")
    if key in values and not re.fullmatch(r"[\w.,@%+:-]+", text):
        raise UsageError(f"--{key} {text or repr('')}: give a name", hint=f"--{key} NAME")
    return text
