"""Does the node's name lead to the node, for others too?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report a node name that does not resolve, or that resolves to loopback although other nodes need it."""
    name, addresses = survey.network.hostname, survey.network.addresses
    if not name:
        return
    if not addresses:
        yield Finding(
            severity="error" if wanted.num_nodes > 1 else "warning",
            message=f"its own name {'' if wanted.num_nodes > 1 else name + ' '}does not resolve",
            evidence=f"getent hosts {name}",
            remedy="export GLOO_SOCKET_IFNAME=INTERFACE   or ask the support to correct /etc/hosts",
            source="PyTorch documentation: distributed, choosing the network interface",
        )
    elif wanted.num_nodes > 1 and all(_is_loopback(address) for address in addresses) and not _is_imitated(survey):
        yield Finding(
            severity="warning",
            message="its own name resolves to its loopback: gloo would give that address to other nodes",
            evidence=f"{name} is {', '.join(addresses)}",
            remedy=f"export GLOO_SOCKET_IFNAME={_interface(survey)}",
            source="PyTorch documentation: distributed, choosing the network interface",
        )


def _is_imitated(survey: Survey) -> bool:
    """Say whether the node is one of several simulated nodes on one machine: loopback is then their network."""
    return survey.node not in ("", survey.network.hostname, survey.network.hostname.partition(".")[0])


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _interface(survey: Survey) -> str:
    up = [each.name for each in survey.network.interfaces if each.is_up and each.address and each.name != "lo"]
    return up[0] if up else "INTERFACE"
