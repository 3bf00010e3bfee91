"""Draw the state of a run on a terminal: all nodes, one node, or one rank; keys change the view."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from echelon.monitor.watch.state import ENDED, FAILED, LOST, DeviceState, NodeState, RankState, RunState
from echelon.units import counted, rate, size

Line = list[tuple[str, str]]  # parts of a line, each with a style; "" is plain
_CODES = {"bold": "1", "dim": "2", "chosen": "7", "bad": "1;37;41", "warning": "30;43", "good": "32"}
HEAT = ("196", "202", "208", "214", "220", "190", "154", "118", "82", "46")
"""Colours of the 256-colour palette for a busy share of 0 to 90 % and more: red to green."""
BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN_BLOCKS = "_.-~=+*#"
"""For terminals that show no Unicode."""


def plain(text: str, style: str = "") -> Line:
    return [(text, style)]


def heat(share: float) -> str:
    return f"heat {min(9, max(0, int(share * 10)))}"


def encode(line: Line, width: int, *, with_colour: bool) -> str:
    """Return a line of at most `width` columns."""
    text, left = "", width
    for style, parts in groupby(line, key=lambda part: part[1]):
        whole = "".join(part for part, _ in parts)[:left]
        left -= len(whole)
        text += _styled(whole, style) if with_colour and style and whole else whole
    return text.rstrip() if not with_colour else text


def _styled(text: str, style: str) -> str:
    code = f"30;48;5;{HEAT[int(style[5:])]}" if style.startswith("heat ") else _CODES[style]
    return f"\033[{code}m{text}\033[0m"


def sparkline(values: Sequence[float], width: int, blocks: str = BLOCKS) -> str:
    """Return a curve of the newest values, one character each, or the mean of several where there are more.

    >>> sparkline([1, 2, 3, 4], 4)
    '▁▃▅█'
    """
    if width <= 0 or not values:
        return ""
    size = max(1, -(-len(values) // width))
    starts = range(len(values) % size if len(values) > size else 0, len(values), size)
    means = [sum(values[start : start + size]) / len(values[start : start + size]) for start in starts]
    low, high = min(means), max(means)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[int((value - low) * scale)] for value in means[-width:])


KEYS = "arrows: move · enter: open · esc: back · /: find · ?: help · q: quit"
LEGEND = "a digit: tenths of a rank's time computing · ! others wait for it · x failed or lost · . to start · = ended"
HELP = (
    "arrows, or h j k l    choose a node or a rank",
    "enter                 open the chosen node, then the chosen rank",
    "esc, or backspace     go back",
    "/ TEXT enter          show only nodes with this text in their names; / enter shows all",
    "?                     this help",
    "q                     quit; the run goes on",
    "",
    *LEGEND.split(" · "),
)
MOST_FACTS = 3
_KEPT = "\u00a0"  # a space at which no line is cut


@dataclass(slots=True, kw_only=True)
class View:
    """What a person looks at."""

    level: str = "fleet"
    """"fleet", "node", "rank" or "help"."""
    chosen: int = 0
    """The place of the chosen node in the fleet, worst first."""
    rank: int = 0
    """The place of the chosen rank on its node."""
    only: str = ""
    """A part of the names of the nodes that are shown."""
    typed: str | None = None
    """What is typed after "/"; None: nothing is asked."""
    log: Sequence[str] = ()
    """The last lines of the log of the rank that is shown."""

    def nodes(self, state: RunState) -> list[NodeState]:
        """Return the nodes that are shown, the worst first."""
        return [node for node in state.worst_first() if self.only in node.name]

    def node(self, state: RunState) -> NodeState | None:
        nodes = self.nodes(state)
        return nodes[min(self.chosen, len(nodes) - 1)] if nodes else None


def draw(
    state: RunState, view: View, width: int, height: int, *, with_colour: bool = False, blocks: str = BLOCKS
) -> list[str]:
    """Return at most `height` lines of at most `width` columns."""
    head = _head(state, width, blocks)
    facts = [plain(text, "warning") for fact in state.facts[-MOST_FACTS:] for text in _wrapped(fact, width)]
    ask = [plain(KEYS if view.typed is None else f"/{view.typed}", "dim")]
    left = max(1, height - len(head) - len(facts) - len(ask) - 1)
    if view.level == "help":
        body = [plain(text) for text in HELP]
    elif view.level == "fleet" or view.node(state) is None:
        body = _fleet(state, view, width, left)
    elif view.level == "node":
        body = _node(state, view)
    else:
        body = _rank(state, view)
    body = body[:left] + [plain("")] * (left - len(body))
    lines = [*head, plain(""), *body, *facts, *ask][:height]
    return [encode(line, width, with_colour=with_colour) for line in lines]


def _head(state: RunState, width: int, blocks: str) -> list[Line]:
    passed = max(0, int(state.now - state.began))
    ranks = f"{counted(state.num_ranks, 'rank')} on {counted(len(state.nodes), 'node')}"
    clock = f"{passed // 3600:02}:{passed // 60 % 60:02}:{passed % 60:02}"
    attempt = f" · attempt {state.attempt}" if state.attempt else ""
    lines = [[(state.name, "bold"), (f" · {state.status} · {clock} · {ranks}{attempt} · step {state.steps}", "")]]
    words = []
    if state.steps_per_second is not None:
        words.append(f"{rate(state.steps_per_second)} steps/s")
    if state.samples_per_second is not None:
        words.append(f"{rate(state.samples_per_second)} samples/s")
    words += [f"{part} {share:.0%}" for part, share in state.shares.items()]
    whole = " · ".join(word.replace(" ", _KEPT) for word in words)
    lines += [plain(text.replace(_KEPT, " ")) for text in _wrapped(whole, width)] if words else []
    points = max(4, min(60, width // 2 - 16))
    curves = []
    if state.losses:
        curves.append(f"loss {sparkline(state.losses, points, blocks)} {state.losses[-1]:.4g}")
    if state.rates:
        curves.append(f"speed {sparkline(state.rates, points, blocks)}")
    return lines + ([plain("  ".join(curves))] if curves else [])


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent="  ") or [""]


def mark(rank: RankState) -> tuple[str, str]:
    busy = rank.busy
    if rank.status in (FAILED, LOST):
        return "x", "bad"
    if rank.status == ENDED:
        return "=", "dim"
    if rank.excess:
        return "!", "warning"
    if rank.status == "waiting":
        return ".", "dim"
    return ("-", "dim") if busy is None else (str(min(9, int(busy * 10))), heat(busy))


def _fleet(state: RunState, view: View, width: int, height: int) -> list[Line]:
    """Draw a cell for each rank, or for each device where no rank runs; nodes side by side, the worst first."""
    nodes = view.nodes(state)
    if not nodes:
        return [plain(f"no node has {view.only!r} in its name" if view.only else "no node has come yet")]
    longest = max(len(node.name) for node in nodes)
    cells = max((len(node.ranks) or len(node.devices) for node in nodes), default=1)
    column = min(width, longest + 1 + cells + 2)
    per_line = max(1, width // column)
    rows = max(1, height - 1 - len(_wrapped(LEGEND, width)))
    first = max(0, (view.chosen // per_line) - rows + 1) * per_line
    shown = nodes[first : first + rows * per_line]
    lines: list[Line] = []
    for start in range(0, len(shown), per_line):
        line: Line = []
        for place, node in enumerate(shown[start : start + per_line], first + start):
            line += _cell(node, column, is_chosen=place == min(view.chosen, len(nodes) - 1))
        lines.append(line)
    rest = len(nodes) - first - len(shown)
    more = plain(f"and {rest} more nodes below" if rest else "")
    return [*lines, more, *[plain(text, "dim") for text in _wrapped(LEGEND, width)]]


def _cell(node: NodeState, column: int, *, is_chosen: bool) -> Line:
    marks = [mark(rank) for rank in node.ranks] or [_mark_of_device(device) for device in node.devices]
    name = ">" if is_chosen else " "
    room = max(1, column - len(marks) - 3)
    line: Line = [(name + node.name[-room:].ljust(room) + " ", "chosen" if is_chosen else "")]
    return [*line, *marks, (" " * max(0, column - room - 2 - len(marks)), "")]


def _mark_of_device(device: DeviceState) -> tuple[str, str]:
    if device.busy is None:
        return "-", "dim"
    return str(min(9, int(device.busy / 10))), heat(device.busy / 100)


_COLUMNS = ("rank", "state", "step", "computing", "data", "commun.", "loss", "memory", "line")


def _node(state: RunState, view: View) -> list[Line]:
    node = view.node(state)
    if node is None:
        return []
    ranks = sorted(node.ranks, key=lambda rank: rank.trouble)
    lines = [plain(node.name + (" is lost" if node.is_lost else ""), "bold"), plain(_row(_COLUMNS), "dim")]
    for place, rank in enumerate(ranks):
        is_chosen = place == min(view.rank, len(ranks) - 1)
        text = (">" if is_chosen else " ") + _row(_cells_of(rank))[1:]
        lines.append([(text, "chosen" if is_chosen else "warning" if rank.excess else "")])
    return lines + [plain(_of_device(device)) for device in node.devices]


def _row(cells: Sequence[str]) -> str:
    widths = (7, 9, 9, 11, 7, 9, 10, 11)
    return "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=False)) + f"  {cells[-1]}"


def _cells_of(rank: RankState) -> list[str]:
    busy = rank.busy
    return [
        str(rank.rank),
        rank.status,
        str(rank.steps),
        "–" if busy is None else f"{busy:.0%}",
        f"{rank.shares['data']:.0%}" if "data" in rank.shares else "–",
        f"{rank.shares['communication']:.0%}" if "communication" in rank.shares else "–",
        "–" if rank.loss is None else f"{rank.loss:.4g}",
        "–" if rank.peak_bytes is None else size(rank.peak_bytes),
        rank.line or "–",
    ]


def _of_device(device: DeviceState) -> str:
    words = [
        f"busy {device.busy:.0f} %" if device.busy is not None else "",
        f"memory {device.memory:.0%}" if device.memory is not None else "",
        f"{device.watts:.0f} W" if device.watts is not None else "",
        f"{device.celsius:.0f} °C" if device.celsius is not None else "",
        f"{device.megahertz:.0f} MHz" if device.megahertz is not None else "",
        f"throttled: {device.throttled}" if device.throttled else "",
    ]
    told = " · ".join(word for word in words if word)
    return f"device {device.number}: {told or 'its load is not known yet'}"


def chosen_rank(state: RunState, view: View) -> RankState | None:
    node = view.node(state)
    ranks = sorted(node.ranks, key=lambda rank: rank.trouble) if node is not None else []
    return ranks[min(view.rank, len(ranks) - 1)] if ranks else None


def _rank(state: RunState, view: View) -> list[Line]:
    rank = chosen_rank(state, view)
    if rank is None:
        return _node(state, view)
    lines = [plain(f"rank {rank.rank} on {rank.node} · {rank.status} · step {rank.steps}", "bold")]
    lines += [plain(f"in {rank.line}")] if rank.line else []
    lines += [plain(f"{part:<20}{share:>6.0%}") for part, share in rank.shares.items()]
    if rank.excess:
        lines.append(plain(f"the others wait for it, {rank.excess:.0%} of their own time:", "warning"))
        lines.append(plain(f"it {rank.cause}", "warning"))
    return [*lines, plain(""), *[plain(text) for text in view.log]]


_MOVES = {"up": -1, "k": -1, "left": -1, "h": -1, "down": 1, "j": 1, "right": 1, "l": 1}
_BACK = {"rank": "node", "node": "fleet", "help": "fleet", "fleet": "fleet"}


def press(key: str, view: View, state: RunState) -> bool:
    """Change the view as a key asks; return whether the person goes on to look."""
    if view.typed is not None:
        _type(key, view)
    elif key in ("q", "Q"):
        return False
    elif key == "?":
        view.level = "fleet" if view.level == "help" else "help"
    elif key == "/":
        view.level, view.typed = "fleet", ""
    elif key in ("esc", "backspace"):
        view.level = _BACK[view.level]
    elif key == "enter":
        if view.level == "fleet" and view.node(state) is not None:
            view.level, view.rank = "node", 0
        elif view.level == "node" and chosen_rank(state, view) is not None:
            view.level = "rank"
    elif key in _MOVES:
        _move(_MOVES[key], view, state)
    return True


def _type(key: str, view: View) -> None:
    if key == "enter":
        view.only, view.typed, view.chosen = view.typed or "", None, 0
    elif key == "esc":
        view.typed = None
    elif key == "backspace":
        view.typed = (view.typed or "")[:-1]
    elif len(key) == 1:
        view.typed = (view.typed or "") + key


def _move(by: int, view: View, state: RunState) -> None:
    if view.level == "fleet":
        view.chosen = max(0, min(view.chosen + by, len(view.nodes(state)) - 1))
    elif view.level in ("node", "rank"):
        node = view.node(state)
        view.rank = max(0, min(view.rank + by, len(node.ranks) - 1)) if node is not None else 0
