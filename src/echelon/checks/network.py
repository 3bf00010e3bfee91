"""Do names and interfaces lead to the node, and will the collectives take the fast network?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from echelon.checks.finding import Finding, Wanted, error, leave_out, warning
from echelon.node.survey.nouns import Interface, Survey

PAGE = "NCCL documentation: environment variables"
MANY_NODES = 256  # with more nodes, NCCL_NET_GDR_LEVEL=PHB has crashed and hung on LUMI (workshop's bonus README)
WITHIN = {  # what each variable switches off
    "NCCL_P2P_DISABLE": "devices of a node then exchange data through the host's memory",
    "NCCL_SHM_DISABLE": "ranks of a node then exchange data over the network",
}
SLOW_PROVIDERS = ("tcp", "sockets", "udp")


def check_fast_network(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
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
            yield warning(
                message=f"{name} is set: {effect}", evidence=f"{name}={variables[name]}",
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
        yield warning(
            message=f"NCCL_SOCKET_IFNAME is not set: NCCL may use {slow[0]} to connect, not {fast[0]}",
            evidence=", ".join(each.name for each in interfaces if each.is_up),
            remedy=f"export NCCL_SOCKET_IFNAME={','.join(fast)}",
            source="lumi-userguide: PyTorch; the LUMI slides on extreme scale",
        )


def _slow(name: str, variables: Mapping[str, str], effect: str, value: str = "") -> Finding:
    return warning(
        message=f"{name}={variables[name]}: {effect}",
        evidence="the environment of this node",
        remedy=f"export {name}={value}" if value else f"unset {name}",
        source=PAGE,
    )


NAME = "NCCL_NET_PLUGIN"


def check_plugin(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report a missing plugin on Slingshot, and a named plugin that does not exist."""
    if wanted.num_nodes < 2 or not survey.devices.visible:
        return
    asked = survey.settings.variables.get(NAME, "")
    plugins = survey.network.plugins
    has_slingshot = any(each.kind == "slingshot" and each.is_up for each in survey.network.interfaces)
    usual = wanted.network.plugin if wanted.network is not None else ""
    if asked.lower() == "none" and has_slingshot:
        yield warning(
            message=f"{NAME}=none, but Slingshot needs a plugin: the collectives use sockets",
            evidence=", ".join(plugins) or "there is no plugin either",
            remedy=f"unset {NAME}",
            source="NCCL documentation: environment variables, NCCL_NET_PLUGIN",
        )
    elif asked and asked.lower() != "none" and not any(asked in path for path in plugins):
        yield error(
            message=f"{NAME}={asked}: the loader does not find this library",
            evidence=f"found: {', '.join(plugins) or 'none'}",
            remedy=f"unset {NAME}   or put its folder on LD_LIBRARY_PATH",
            source="NCCL documentation: environment variables, NCCL_NET_PLUGIN",
        )
    elif has_slingshot and not plugins and not survey.software.container:
        yield warning(
            message="there is no plugin for Slingshot: the collectives use sockets, published at 5.4 GB/s where the "
            "plugin has 123",
            evidence="neither on LD_LIBRARY_PATH nor in /etc/ld.so.cache: libnccl-net*.so, librccl-net*.so",
            remedy=f"module load {usual or 'aws-ofi-nccl'}   or use the machine's container: --container",
            source=wanted.network.source if wanted.network is not None else "CSCS documentation: NCCL",
        )


NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")
CARDS = "NCCL_IB_HCA"
SOURCE = "NCCL documentation: environment variables, NCCL_SOCKET_IFNAME"
FAST = ("slingshot", "infiniband")


def check_interfaces(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report interface variables that select nothing or a down interface, and fast interfaces that are down or slow."""
    variables, interfaces = survey.settings.variables, survey.network.interfaces
    for name in NAMES:
        text = variables.get(name, "")
        if text and interfaces:
            yield from _of_interfaces(name, text, interfaces, wanted)
    cards = [each.name for each in interfaces if each.kind == "infiniband"]
    text = variables.get(CARDS, "")
    if text and cards and wanted.num_nodes > 1:
        yield from _of_cards(text, cards)
    yield from _fast(survey)


def chosen(text: str, names: Sequence[str]) -> list[str]:
    """Return the interfaces that a value selects: by prefix, after = by exact name; ^ excludes them."""
    is_not, text = text.startswith("^"), text.removeprefix("^")
    is_exact, text = text.startswith("="), text.removeprefix("=")
    words = [word.strip() for word in text.split(",") if word.strip()]
    fits = [name for name in names if any(name == word if is_exact else name.startswith(word) for word in words)]
    return [name for name in names if name not in fits and name != "lo"] if is_not else fits


def _of_interfaces(name: str, text: str, interfaces: Sequence[Interface], wanted: Wanted) -> Iterator[Finding]:
    is_exact = name.startswith(("GLOO", "TP"))  # gloo and TensorPipe take one exact name
    value = text if not is_exact or text.startswith("=") else "=" + text
    selected = chosen(value, [each.name for each in interfaces])
    up = [each for each in interfaces if each.is_up and each.name != "lo"]
    best = [each.name for each in up if each.kind in FAST and each.address] or [each.name for each in up]
    remedy = f"export {name}={best[0] if is_exact else ','.join(best)}" if best else f"unset {name}"
    listed = ", ".join(f"{each.name} ({'up' if each.is_up else 'down'})" for each in interfaces)
    if not selected:
        yield error(
            message=f"{name}={text} matches no interface of the node", evidence=listed,
            remedy=remedy, source=SOURCE,
        )  # fmt: skip
        return
    usable = [each for each in up if each.name in selected]
    if not usable and wanted.num_nodes > 1:
        yield error(
            message=f"{name}={text} chooses {', '.join(selected)}: "
            + ("only the node itself can be reached there" if selected == ["lo"] else "down"),
            evidence=listed, remedy=remedy, source=SOURCE,
        )  # fmt: skip
    fast = [each.name for each in up if each.kind in FAST and each.address]
    if usable and fast and not any(each.name in fast for each in usable) and wanted.num_nodes > 1:
        yield warning(
            message=f"{name}={text} chooses {usable[0].name}, but the fast network is {','.join(fast)}",
            evidence=listed, remedy=remedy, source=SOURCE,
        )  # fmt: skip


def _of_cards(text: str, cards: Sequence[str]) -> Iterator[Finding]:
    is_not = text.startswith("^")
    plain = ",".join(word.partition(":")[0] for word in text.lstrip("^").split(","))
    if not chosen(("^" if is_not else "") + plain, cards):
        yield error(
            message=f"{CARDS}={text} chooses no card, so NCCL uses sockets",
            evidence=", ".join(cards), remedy=f"unset {CARDS}",
            source="NCCL documentation: environment variables, NCCL_IB_HCA",
        )  # fmt: skip


def _fast(survey: Survey) -> Iterator[Finding]:
    fast = [each for each in survey.network.interfaces if each.kind in FAST]
    down = [each.name for each in fast if not each.is_up]
    if down:
        yield Finding(
            severity="warning" if len(down) < len(fast) else "error",
            message=f"{', '.join(down)} of the fast network {'is' if len(down) == 1 else 'are'} down",
            evidence=f"{len(fast) - len(down)} of {len(fast)} are up",
            remedy=leave_out(survey.node),
        )
    most = max((each.bits_per_second for each in fast if each.is_up), default=0)
    for nic in fast:
        if nic.is_up and 0 < nic.bits_per_second < most:
            yield warning(
                message=f"{nic.name} has a link of {nic.bits_per_second / 1e9:g} Gbit/s, others {most / 1e9:g}",
                evidence="speed in /sys/class",
                remedy=leave_out(survey.node),
            )


def check_names(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
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
        yield warning(
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
