"""Draw a node as a picture: sockets, NUMA domains with cores, devices, NICs and links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from echelon.topology import binding, devices, discover
from echelon.units import size

if TYPE_CHECKING:
    from echelon.topology.node import Cpu, Device, Nic, Node

COLOURS = ("#3b6fb6", "#d9822b", "#3f9b6e", "#b8498f", "#7a62c9", "#c9a227", "#2f9fb3", "#c2504a")
INK, SOFT, LINE, PAPER, GREY, PANEL = "#1f2733", "#5d6878", "#c4ccd8", "#ffffff", "#e3e7ed", "#f6f8fb"
CELL, GAP, CACHE_GAP = 13, 3, 10
CARD_WIDTH, CARD_HEIGHT, CARD_GAP = 118, 66, 12
PAD, TITLE = 14, 24
TOP = 84  # the top of the sockets
LONGEST = 17  # characters on a card
NOT_KNOWN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A NUMA domain with its cores, caches, devices and NICs."""

    number: int
    socket: int
    cores: str
    caches: list[list[Cpu]]  # the first hardware thread of each core, by cache
    devices: list[Device]
    nics: list[Nic]
    notes: list[str]

    @property
    def width(self) -> int:
        cards = max(1, len(self.devices)) * (CARD_WIDTH + CARD_GAP) - CARD_GAP
        return max(cards, *(_cache_size(cache)[0] for cache in self.caches), 150) + 2 * PAD

    @property
    def rows(self) -> list[list[list[Cpu]]]:
        """The caches in rows of equal length that fit into the width."""
        widest = max(_cache_size(cache)[0] for cache in self.caches) + CACHE_GAP
        most = max(1, (self.width - 2 * PAD + CACHE_GAP) // widest)
        num_rows = -(-len(self.caches) // most)
        across = -(-len(self.caches) // num_rows)
        return [self.caches[start : start + across] for start in range(0, len(self.caches), across)]

    @property
    def height(self) -> int:
        cells = sum(max(_cache_size(cache)[1] for cache in row) + CACHE_GAP for row in self.rows)
        return TITLE + 22 + cells + 16 * len(self.notes) + (28 if self.nics else 0) + 4


def _cache_size(cache: list[Cpu]) -> tuple[int, int]:
    across = _across(len(cache))
    return across * (CELL + GAP) - GAP, -(-len(cache) // across) * (CELL + GAP) - GAP


def _across(count: int) -> int:
    if count <= 8:
        return max(1, count)
    return next((width for width in (8, 10, 12, 9, 7) if count % width == 0 and count // width <= 6), 12)


def svg(node: Node) -> str:
    columns = _columns(node)
    core_of = {cpu.number: cpu.core for cpu in node.cpus}
    owners = {core_of[thread]: number for number, cpus in discover.near_cores(node).items() for thread in cpus}
    allowed = {core_of[thread] for thread in node.allowed}
    tallest = max(column.height for column in columns)
    canvas: list[str] = []
    centres: dict[int, float] = {}
    cards_top = TOP + TITLE + tallest + 26
    x = 24.0
    for socket in sorted({column.socket for column in columns}):
        mine = [column for column in columns if column.socket == socket]
        width = sum(column.width for column in mine) + 12 * (len(mine) - 1) + 2 * PAD
        canvas += _box(x, TOP, width, TITLE + tallest + PAD, PANEL, LINE, 10)
        canvas += _text(x + PAD, TOP + 17, f"socket {socket}" if socket >= 0 else "processors", 13, SOFT)
        left = x + PAD
        for column in mine:
            canvas += _domain(column, left, TOP + TITLE, tallest, owners, allowed)
            canvas += _cards(node, column, left, TOP + TITLE + tallest, cards_top, centres)
            left += column.width + 12
        x += width + 18
    total = max(x + 6, 620.0, 7.0 * len(_summary(node)) + 48)
    arcs, depth = _links(node, centres, cards_top + CARD_HEIGHT + 8)
    bottom = (cards_top + CARD_HEIGHT if node.devices else TOP + TITLE + tallest + PAD) + depth + 30
    canvas += arcs + _legend(node, bottom)
    return _document(total, bottom + (44 if node.device_links else 24), _head(node) + canvas)


def _columns(node: Node) -> list[Column]:
    """Return the domains with cores, by socket; a domain without cores becomes a note at the nearest domain."""
    numbers = sorted({cpu.numa for cpu in node.cpus}) or [NOT_KNOWN]
    homes = {device.number: _home(node, device.numa, numbers) for device in node.devices}
    columns = []
    for number in numbers:
        mine = [cpu for cpu in node.cpus if cpu.numa == number and cpu.number == cpu.core]
        caches: dict[int, list[Cpu]] = {}
        for cpu in mine:
            caches.setdefault(cpu.cache, []).append(cpu)
        columns.append(
            Column(
                number=number,
                socket=min((cpu.socket for cpu in mine), default=0),
                cores=_cores([cpu for cpu in node.cpus if cpu.numa == number]),
                caches=list(caches.values()) or [[]],
                devices=[device for device in node.devices if homes[device.number] == number],
                nics=[nic for nic in node.nics if _home(node, nic.numa, numbers) == number],
                notes=[
                    f"+ NUMA {other}: {size(memory)}, no cores"
                    for other, memory in sorted(node.numa_memory_bytes.items())
                    if other not in numbers and memory and _home(node, other, numbers) == number
                ],
            )
        )
    return sorted(columns, key=lambda column: (column.socket, column.number))


def _cores(cpus: list[Cpu]) -> str:
    """Return the cores as a list; use hardware threads where that is shorter, as with adjacent siblings."""
    cores = f"cores {binding.cpu_list(cpu.core for cpu in cpus) or 'none'}"
    threads = f"hardware threads {binding.cpu_list(cpu.number for cpu in cpus)}"
    return min(cores, threads, key=len)


def _home(node: Node, domain: int, numbers: list[int]) -> int:
    """Return the domain with cores at which this domain's devices are drawn."""
    if domain in numbers:
        return domain
    return min(numbers, key=lambda number: (devices.between(node, number, domain) or 256, number))


def _domain(column: Column, x: float, y: float, height: float, owners: dict[int, int], allowed: set[int]) -> list[str]:
    title = f"NUMA {column.number}" if column.number >= 0 else "all cores"
    parts = _box(x, y, column.width, height, PAPER, LINE, 7)
    parts += _text(x + PAD, y + 19, title, 13, INK, bold=True)
    parts += _text(x + PAD, y + 37, column.cores, 11, SOFT)
    top = y + TITLE + 22
    for row in column.rows:
        left = x + PAD
        for cache in row:
            parts += _cells(cache, left, top, owners, allowed)
            left += _cache_size(cache)[0] + CACHE_GAP
        top += max(_cache_size(cache)[1] for cache in row) + CACHE_GAP
    for note in column.notes:
        parts += _text(x + PAD, top + 8, note, 11, SOFT)
        top += 16
    left = x + PAD
    for nic in column.nics:
        width = 7.0 * len(nic.name) + 16
        parts += _box(left, y + height - 28, width, 19, PANEL, LINE if nic.is_up else GREY, 9)
        parts += _text(left + 8, y + height - 14.5, nic.name, 11, INK if nic.is_up else LINE)
        left += width + 6
    return parts


def _cells(cache: list[Cpu], x: float, y: float, owners: dict[int, int], allowed: set[int]) -> list[str]:
    """Draw the cores under one cache, each in the colour of the device of its rank."""
    parts = []
    across = _across(len(cache))
    for index, cpu in enumerate(cache):
        left, top = x + index % across * (CELL + GAP), y + index // across * (CELL + GAP)
        owner = owners.get(cpu.number)
        fill = COLOURS[owner % len(COLOURS)] if owner is not None else PAPER if cpu.number in allowed else GREY
        edge = SOFT if owner is None and cpu.number in allowed else fill
        parts += _box(left, top, CELL, CELL, fill, edge, 2.5)
    return parts


def _cards(node: Node, column: Column, x: float, bottom: float, y: float, centres: dict[int, float]) -> list[str]:
    """Draw the devices of a domain below it, with a frame around devices on one chip."""
    parts: list[str] = []
    left = x + (column.width - len(column.devices) * (CARD_WIDTH + CARD_GAP) + CARD_GAP) / 2
    lefts = {}
    for device in column.devices:
        centre = left + CARD_WIDTH / 2
        is_placed = device.numa >= 0 or column.number < 0
        dash = "" if is_placed else ' stroke-dasharray="3 3"'
        parts.append(f'<path d="M{centre:g} {bottom:g}V{y:g}" stroke="{SOFT}" stroke-width="1.5" fill="none"{dash}/>')
        parts += _card(node, device, left, y)
        lefts[device.number], centres[device.number] = left, centre
        left += CARD_WIDTH + CARD_GAP
    frames = []
    for chip in sorted({device.chip for device in column.devices}):
        on_chip = [lefts[device.number] for device in column.devices if device.chip == chip]
        if len(on_chip) > 1:
            width = max(on_chip) - min(on_chip) + CARD_WIDTH + 10
            frames += _box(min(on_chip) - 5, y - 5, width, CARD_HEIGHT + 10, "#eceff4", LINE, 10)
    return frames + parts


def _card(node: Node, device: Device, x: float, y: float) -> list[str]:
    colour = COLOURS[device.number % len(COLOURS)] if device.is_allowed else LINE
    ink = INK if device.is_allowed else SOFT
    parts = _box(x, y, CARD_WIDTH, CARD_HEIGHT, PAPER, colour, 6, stroke_width=1.8)
    parts += _box(x, y, 7, CARD_HEIGHT, colour, colour, 3)
    nic = binding.nearest_nic(node, device)
    model = device.model.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("Tesla ") or device.vendor
    memory = f" {size(device.memory_bytes)}" if device.memory_bytes else ""
    memory = memory if len(model + memory) <= LONGEST else ""  # most model names include the memory
    parts += _text(x + 15, y + 18, f"device {device.number}", 13, ink, bold=True)
    parts += _text(x + 15, y + 35, _short(f"{model}{memory}", LONGEST), 11, SOFT)
    last = f"→ {nic.name}" if nic else ""
    parts += _text(x + 15, y + 52, last if device.is_allowed else "not allowed", 11, SOFT)
    return parts


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _links(node: Node, centres: dict[int, float], y: float) -> tuple[list[str], float]:
    """Draw the links below the devices, and return their height too; equal links between all devices become one bar."""
    links = [link for link in node.device_links if link[0] in centres and link[1] in centres]
    if not links:
        return [], 0.0
    name = {"xgmi": "xGMI", "nvlink": "NVLink"}
    num_devices = len({number for link in links for number in link[:2]})
    if (
        num_devices > 4
        and len(links) == num_devices * (num_devices - 1) // 2
        and len({link[2:] for link in links}) == 1
    ):
        return _bar(
            f"{name.get(links[0][2], links[0][2])}: each with each, {links[0][3] or '?'} links", centres, y
        ), 46.0
    spans = [abs(centres[one] - centres[other]) for one, other, _, _ in links]
    parts: list[str] = []
    for (first, second, _, count), span in sorted(zip(links, spans, strict=True), key=lambda pair: -pair[1]):
        low, high = sorted((centres[first], centres[second]))
        dip = y + _depth(span) * 4 / 3
        shift = 5.0 * (1 if low < high else 0)
        path = f"M{low + shift:g} {y:g}C{low + shift:g} {dip:g} {high - shift:g} {dip:g} {high - shift:g} {y:g}"
        width = 1.2 + 0.9 * max(0, count - 1)
        parts.append(f'<path d="{path}" stroke="{_shade(count)}" stroke-width="{width:g}" fill="none"/>')
    return parts, _depth(max(spans)) + 12


def _depth(span: float) -> float:
    return 22 + span * 0.13


def _shade(count: int) -> str:
    return INK if count >= 4 else SOFT if count >= 2 else "#9aa5b5"


def _bar(label: str, centres: dict[int, float], y: float) -> list[str]:
    low, high = min(centres.values()), max(centres.values())
    parts = [
        f'<path d="M{centre:g} {y:g}v16" stroke="{SOFT}" stroke-width="3" fill="none"/>' for centre in centres.values()
    ]
    parts += _box(low - 40, y + 16, high - low + 80, 24, PANEL, SOFT, 7)
    return [*parts, *_text((low + high) / 2, y + 32, label, 12, INK, anchor="middle")]


def _head(node: Node) -> list[str]:
    return _text(24, 38, node.name or "this node", 22, INK, bold=True) + _text(24, 62, _summary(node), 13, SOFT)


def _summary(node: Node) -> str:
    memory = sum(node.numa_memory_bytes.get(number, 0) for number in {cpu.numa for cpu in node.cpus})
    cores = discover.num_cores(node)
    threads = len(node.cpus) // max(1, cores)
    parts = [f"{cores} cores" + (f" × {threads} hardware threads" if threads > 1 else "")]
    parts += [size(memory)] if memory else []
    kinds: dict[str, int] = {}
    for device in node.devices:
        kind = device.model or ("a device of unknown model" if device.is_allowed else "not allowed")
        kinds[kind] = kinds.get(kind, 0) + 1
    parts += [f"{count} × {kind}" for kind, count in sorted(kinds.items())] or ["no devices"]
    return " · ".join(parts)


def _legend(node: Node, y: float) -> list[str]:
    entries = [(GREY, GREY, "not allowed here"), (PAPER, SOFT, "allowed, no device's own")]
    if node.devices:
        entries.insert(0, (COLOURS[0], COLOURS[0], "a core in the colour of its device"))
    parts: list[str] = []
    x = 24.0
    for fill, edge, label in entries:
        parts += _box(x, y - 11, CELL, CELL, fill, edge, 2.5) + _text(x + 20, y, label, 11, SOFT)
        x += 20 + 5.8 * len(label) + 24
    if node.device_links:
        parts += _text(24, y + 20, "Lines below the devices are their links; more links make a thicker line.", 11, SOFT)
    return parts


def _box(
    x: float, y: float, width: float, height: float, fill: str, edge: str, radius: float, *, stroke_width: float = 1.0
) -> list[str]:
    return [
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" fill="{fill}" '
        f'stroke="{edge}" stroke-width="{stroke_width:g}"/>'
    ]


def _text(
    x: float, y: float, text: str, font_size: int, fill: str, *, bold: bool = False, anchor: str = "start"
) -> list[str]:
    weight = ' font-weight="600"' if bold else ""
    return [
        f'<text x="{x:g}" y="{y:g}" font-size="{font_size}" fill="{fill}" text-anchor="{anchor}"{weight}>'
        f"{escape(_printable(text))}</text>"
    ]


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _document(width: float, height: float, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" font-family="Inter, Helvetica, Arial, DejaVu Sans, sans-serif">'
    )
    paper = f'<rect width="{width:g}" height="{height:g}" fill="{PAPER}"/>'
    return "\n".join([head, paper, *parts, "</svg>"]) + "\n"
