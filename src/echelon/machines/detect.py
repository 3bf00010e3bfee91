"""Recognise the current machine, and say how."""

from __future__ import annotations

import fnmatch
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echelon.errors import EchelonError
from echelon.host import Host
from echelon.machines import files
from echelon.scheduler.slurm import allocation

if TYPE_CHECKING:
    from echelon.machines.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """A recognised machine."""

    machine_name: str
    how: str
    """The sign, as a sentence for people: "Slurm's cluster name is lumi"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """The result of the recognition."""

    found: Detected | None
    remarks: tuple[str, ...] = ()
    """Signs that did not help, or programs that did not answer, for people."""


def detect(environ: Mapping[str, str], host: Host, hostname: str) -> Detected | None:
    """Return the current machine; None if no file describes it."""
    return recognise(environ, host, hostname).found


def here(host: Host) -> Machine | None:
    """Return the facts of the current machine; None if no file describes it."""
    detected = detect(host.environ, host, socket.gethostname())
    if detected is None:
        return None
    from echelon.machines.load import find

    return find(detected.machine_name, host.environ)


def recognise(environ: Mapping[str, str], host: Host, hostname: str) -> Recognition:
    """Look for the machine and report signs that did not help; raise UsageError for an unknown ECHELON_MACHINE."""
    if named := environ.get("ECHELON_MACHINE", ""):
        from echelon.machines.load import find

        find(named, environ)
        return Recognition(found=Detected(machine_name=named, how=f"ECHELON_MACHINE is {named}"))
    if cluster := allocation.cluster(environ):
        return _of_cluster(cluster, environ)
    from echelon.machines.load import load_all
    from echelon.scheduler.slurm import site

    for machine in load_all(environ).values():
        for glob in machine.login_hosts:
            if any(fnmatch.fnmatch(name, glob) for name in (hostname, hostname.partition(".")[0])):
                how = f"this host is called {hostname}, as login nodes of {machine.name} are ({glob})"
                return Recognition(found=Detected(machine_name=machine.name, how=how))
    try:
        return _of_cluster(site.ask_cluster(host), environ)
    except EchelonError as error:
        return Recognition(found=None, remarks=(f"{error.message}: no cluster name to go by",))


def _of_cluster(cluster: str, environ: Mapping[str, str]) -> Recognition:
    for machine in _mentioning(cluster, environ):
        if cluster.lower() in (name.lower() for name in machine.clusters):
            return Recognition(found=Detected(machine_name=machine.name, how=f"Slurm's cluster name is {cluster}"))
    remark = f"Slurm's cluster name is {cluster}, which no machine file has; echelon machines learn writes one"
    return Recognition(found=None, remarks=(remark,) if cluster else ())


def _mentioning(cluster: str, environ: Mapping[str, str]) -> list[Machine]:
    """Return the machines whose files contain the word; each run calls this, so other files are not parsed."""
    word = cluster.lower()
    names = {file.name for layer in files.layers(environ) for file in layer if word in file.text.lower()}
    if not names:
        return []
    from echelon.machines.load import load_all, load_named

    if "" in names:  # a file whose name needs parsing
        return list(load_all(environ).values())
    machines = [load_named(name, environ) for name in sorted(names, key=lambda name: (name.lower() != word, name))]
    return [machine for machine in machines if machine is not None]
