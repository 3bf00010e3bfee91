"""Will the collectives take the fast network, and the fast ways within a node?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey

PAGE = "NCCL documentation: environment variables"
MANY_NODES = 256  # with more nodes, NCCL_NET_GDR_LEVEL=PHB has crashed and hung on LUMI (workshop's bonus README)
WITHIN = {  # what each variable switches off
    "NCCL_P2P_DISABLE": "devices of a node then exchange data through the host's memory",
    "NCCL_SHM_DISABLE": "ranks of a node then exchange data over the network",
}
SLOW_PROVIDERS = ("tcp", "sockets", "udp")


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report variables that disable fast transports, and a missing variable that lets a slow interface be chosen."""
    variables = survey.settings.variables
    if not survey.devices.visible:
        return
    if len(survey.devices.visible) > 1:
        yield from _within(variables)
    if wanted.num_nodes > 1:
        yield from _between(survey, wanted)


def _within(variables: Mapping[str, str]) -> Iterator[Finding]:
    for name, effect in WITHIN.items():
        if variables.get(name, "0") not in ("0", ""):
            yield Finding(
                severity="warning", message=f"{name} is set: {effect}", evidence=f"{name}={variables[name]}",
                remedy=f"unset {name}", source=PAGE,
            )  # fmt: skip


def _between(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    variables, interfaces = survey.settings.variables, survey.network.interfaces
    kinds = {each.kind for each in interfaces if each.is_up}
    if "infiniband" in kinds and variables.get("NCCL_IB_DISABLE", "0") not in ("0", ""):
        yield _slow(
            "NCCL_IB_DISABLE",
            variables,
            "the node has InfiniBand, but a setting switches it off: the collectives use sockets",
        )
    if kinds & {"infiniband", "slingshot"} and variables.get("NCCL_NET", "").lower() == "socket":
        yield _slow("NCCL_NET", variables, "the node has the fast network, but a setting asks for sockets")
    provider = variables.get("FI_PROVIDER", "")
    if "slingshot" in kinds and provider.split(";")[0] in SLOW_PROVIDERS:
        yield _slow("FI_PROVIDER", variables, "a setting makes libfabric use sockets instead of Slingshot's cxi", "cxi")
    level = variables.get("NCCL_NET_GDR_LEVEL", "")
    if level.upper() in ("LOC", "0") and kinds & {"infiniband", "slingshot"}:
        yield _slow("NCCL_NET_GDR_LEVEL", variables, "a setting switches RDMA into device memory off")
    elif level.upper() in ("PHB", "3") and "slingshot" in kinds and wanted.num_nodes > MANY_NODES:
        yield _slow(
            "NCCL_NET_GDR_LEVEL",
            variables,
            f"this setting crashes or hangs above {MANY_NODES} nodes of Slingshot",
            "PIX",
        )
    fast = [each.name for each in interfaces if each.kind == "slingshot" and each.is_up and each.address]
    others = [each.name for each in interfaces if each.kind != "slingshot" and each.is_up and each.address]
    slow = [name for name in others if name != "lo"]
    names = {"NCCL_SOCKET_IFNAME"}
    if fast and slow and not names & (variables.keys() | wanted.provided):
        yield Finding(
            severity="warning",
            message=f"NCCL_SOCKET_IFNAME is not set: NCCL may use {slow[0]} to connect, not {fast[0]}",
            evidence=", ".join(each.name for each in interfaces if each.is_up),
            remedy=f"export NCCL_SOCKET_IFNAME={','.join(fast)}",
            source="lumi-userguide: PyTorch; the LUMI slides on extreme scale",
        )


def _slow(name: str, variables: Mapping[str, str], effect: str, value: str = "") -> Finding:
    return Finding(
        severity="warning",
        message=f"{name}={variables[name]}: {effect}",
        evidence="the environment of this node",
        remedy=f"export {name}={value}" if value else f"unset {name}",
        source=PAGE,
    )
