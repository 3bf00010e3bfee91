"""Which machine this is, and how that is known."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass

from echelon.errors import EchelonError
from echelon.host import Host
from echelon.machines.load import find, load_all, load_named
from echelon.slurm import site


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """A machine that was recognised."""

    machine_name: str
    how: str
    """A sentence for people: "Slurm's cluster name is lumi"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recognition:
    """What was found out about where one stands."""

    found: Detected | None
    remarks: tuple[str, ...] = ()
    """What was looked at in vain, or did not answer, for people."""


def detect(environ: Mapping[str, str], host: Host, hostname: str) -> Detected | None:
    """Return the machine that one stands on, or None where no file describes it."""
    return recognise(environ, host, hostname).found


def recognise(environ: Mapping[str, str], host: Host, hostname: str) -> Recognition:
    """Look for the machine and say also what did not help; raise UsageError for an ECHELON_MACHINE that is unknown."""
    if named := environ.get("ECHELON_MACHINE", ""):
        find(named, environ)
        return Recognition(found=Detected(machine_name=named, how=f"ECHELON_MACHINE is {named}"))
    if cluster := site.cluster_of(environ):
        return _of_cluster(cluster, environ)
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
    # most files are called as the cluster is: then the others need not be parsed
    first = load_named(cluster.lower(), environ)
    candidates = [first] if first and cluster.lower() in map(str.lower, first.clusters) else load_all(environ).values()
    for machine in candidates:
        if cluster.lower() in (name.lower() for name in machine.clusters):
            return Recognition(found=Detected(machine_name=machine.name, how=f"Slurm's cluster name is {cluster}"))
    remark = f"Slurm's cluster name is {cluster}, which no machine file has; echelon machines learn writes one"
    return Recognition(found=None, remarks=(remark,) if cluster else ())
