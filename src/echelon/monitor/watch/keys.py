"""What the keys of `echelon watch` do to the view."""

from __future__ import annotations

from echelon.monitor.watch.screen import View, chosen_rank
from echelon.monitor.watch.state import RunState

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
        _open(view, state)
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


def _open(view: View, state: RunState) -> None:
    if view.level == "fleet" and view.node(state) is not None:
        view.level, view.rank = "node", 0
    elif view.level == "node" and chosen_rank(state, view) is not None:
        view.level = "rank"


def _move(by: int, view: View, state: RunState) -> None:
    if view.level == "fleet":
        view.chosen = max(0, min(view.chosen + by, len(view.nodes(state)) - 1))
    elif view.level in ("node", "rank"):
        node = view.node(state)
        view.rank = max(0, min(view.rank + by, len(node.ranks) - 1)) if node is not None else 0
