"""The options by which `echelon plan` and `echelon submit` ask for devices, nodes, time and money."""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Mapping
from functools import partial

from echelon import units
from echelon.cli import readers
from echelon.cli.options import Option, fields
from echelon.errors import UsageError
from echelon.host import Host
from echelon.machines.machine import Machine
from echelon.spec import Request


def machine_names() -> tuple[str, ...]:
    """Return the names of the known machines, and "local"."""
    from echelon.machines import load

    return load.names(os.environ)


_NUMBER = partial(readers.whole, least=1, most=9_999_999)
RESOURCES: tuple[Option, ...] = (
    Option(names=("-G", "--gpus"), value="N", fills="num_devices", reads=_NUMBER, help="the total number of devices: 1, 8, 16 …"),
    Option(names=("-N", "--nodes"), value="N", fills="num_nodes", reads=_NUMBER, help="nodes: whole nodes, or with --gpus the nodes that share these devices"),
    Option(names=("--gpus-per-node",), value="N", fills="devices_per_node", reads=_NUMBER, help="devices of each node, as in Slurm"),
    Option(names=("--exclusive",), fills="whole_nodes", help="use the nodes for this job alone"),
    Option(names=("-t", "--time"), value="TIME", fills="minutes", reads=units.minutes, help=f"the time limit: {units.TIMES}"),
    Option(names=("-p", "--partition"), value="NAME", fills="partition", reads=readers.name, help="use this partition (default: the cheapest that fits)"),
    Option(names=("--chip",), value="NAME", fills="chip", reads=readers.name, help="use nodes with this chip, if a machine has several chips"),
    Option(names=("--cores-per-gpu",), value="N", fills="cores_per_device", reads=_NUMBER, help="cores of each rank (default: its fair share)"),
    Option(names=("--cpus-per-task",), value="N", fills="cpus_per_rank", reads=_NUMBER, help="CPUs of each rank, as in Slurm with one task per rank"),
    Option(names=("--mem-per-gpu",), value="SIZE", fills="memory_bytes_per_device", reads=units.size_bytes, help="memory of each rank, 60G (default: its fair share)"),
    Option(names=("--mem",), value="SIZE", fills="memory_bytes_per_node", reads=units.size_bytes, help="memory of each node, as in Slurm"),
    Option(names=("-A", "--account"), value="NAME", fills="account", reads=readers.name, help="whom to bill"),
    Option(names=("--qos",), value="NAME", fills="qos", reads=readers.name, help="Slurm's quality of service"),
    Option(names=("--reservation",), value="NAME", fills="reservation", reads=readers.name, help="a reservation, for a course or a demonstration"),
    Option(names=("--global-batch",), value="N", fills="global_batch", reads=_NUMBER, help="samples of one step over all ranks: each rank gets its part as an argument"),
    Option(names=("--machine",), value="NAME", choices=machine_names, help="the machine to plan for (default: the machine you are on)"),
)  # fmt: skip

DEFAULT_MINUTES = 60


def read_request(values: Mapping[str, str], environ: Mapping[str, str]) -> Request:
    """Return the resources that the options ask for; raise UsageError for an invalid value."""
    from echelon.scheduler.slurm.allocation import account

    for option, other in (("mem", "mem_per_gpu"), ("cpus_per_task", "cores_per_gpu")):
        if option in values and other in values:
            both = f"--{option} and --{other}".replace("_", "-")
            raise UsageError(f"{both} set the same value", hint=f"remove --{other.replace('_', '-')}")
    filled = {"minutes": DEFAULT_MINUTES, **fields({key: [text] for key, text in values.items()}, RESOURCES)}
    return Request(**{**filled, "account": filled.get("account") or account(environ)})


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
