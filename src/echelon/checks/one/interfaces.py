"""Do the interfaces that are named exist, and are they up?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from echelon.checks.finding import Finding, Wanted, leave_out
from echelon.node.survey.nouns import Interface, Survey

NAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")
CARDS = "NCCL_IB_HCA"
SOURCE = "NCCL documentation: environment variables, NCCL_SOCKET_IFNAME"
FAST = ("slingshot", "infiniband")


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report interface variables that select nothing or a down interface, and fast interfaces that are down or slow."""
    variables, interfaces = survey.settings.variables, survey.network.interfaces
    for name in NAMES:
        text = variables.get(name, "")
        if text and interfaces:
            yield from _of_one(name, text, interfaces, wanted)
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


def _of_one(name: str, text: str, interfaces: Sequence[Interface], wanted: Wanted) -> Iterator[Finding]:
    is_exact = name.startswith(("GLOO", "TP"))  # gloo and TensorPipe take one exact name
    value = text if not is_exact or text.startswith("=") else "=" + text
    selected = chosen(value, [each.name for each in interfaces])
    up = [each for each in interfaces if each.is_up and each.name != "lo"]
    best = [each.name for each in up if each.kind in FAST and each.address] or [each.name for each in up]
    remedy = f"export {name}={best[0] if is_exact else ','.join(best)}" if best else f"unset {name}"
    listed = ", ".join(f"{each.name} ({'up' if each.is_up else 'down'})" for each in interfaces)
    if not selected:
        yield Finding(
            severity="error", message=f"{name}={text} matches no interface of the node", evidence=listed,
            remedy=remedy, source=SOURCE,
        )  # fmt: skip
        return
    usable = [each for each in up if each.name in selected]
    if not usable and wanted.num_nodes > 1:
        yield Finding(
            severity="error",
            message=f"{name}={text} chooses {', '.join(selected)}: "
            + ("only the node itself can be reached there" if selected == ["lo"] else "down"),
            evidence=listed, remedy=remedy, source=SOURCE,
        )  # fmt: skip
    fast = [each.name for each in up if each.kind in FAST and each.address]
    if usable and fast and not any(each.name in fast for each in usable) and wanted.num_nodes > 1:
        yield Finding(
            severity="warning",
            message=f"{name}={text} chooses {usable[0].name}, but the fast network is {','.join(fast)}",
            evidence=listed, remedy=remedy, source=SOURCE,
        )  # fmt: skip


def _of_cards(text: str, cards: Sequence[str]) -> Iterator[Finding]:
    is_not = text.startswith("^")
    plain = ",".join(word.partition(":")[0] for word in text.lstrip("^").split(","))
    if not chosen(("^" if is_not else "") + plain, cards):
        yield Finding(
            severity="error",
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
            yield Finding(
                severity="warning",
                message=f"{nic.name} has a link of {nic.bits_per_second / 1e9:g} Gbit/s, others {most / 1e9:g}",
                evidence="speed in /sys/class",
                remedy=leave_out(survey.node),
            )
