"""What has changed in the objects that a script's variables reach, between two pictures of them."""

from typing import Any

from ..wire import plain_data
from .iterator_positions import KEPT, IteratorPosition, advance
from .picture import NEW, FirstPicture, ObjectNode, Picture
from .value_stack import Unclear

IMMUTABLE = ("tuple", "named tuple", "frozenset", "tensor", "weight", "value", "method", "partial", "class", "fixed")
NAMED = ("frame", "object", "module", "optimizer", "class", "function", "fixed")
_CREATED = (
    "tuple", "named tuple", "frozenset", "tensor", "weight", "value", "method", "partial", "list", "dict", "set",
    "deque", "array", "pass",
)  # fmt: skip


def changes_of(picture: Picture, begun: FirstPicture) -> tuple[list[Any], list[str]]:
    """Return each node with what has changed in it since the beginning; its last entry says whether anything has.

    Returns also for each object the path of that which takes its place in another process; NEW: it is made.
    Adds to the refusals of the picture what can neither be made nor has an object that takes its place.
    """
    known = [begun.path_of(value, node) for value, node in zip(picture.objects, picture.nodes, strict=True)]
    taken = set(known)
    nodes, places = [], []
    for path, node, own in zip(known, picture.nodes, picture.paths, strict=True):
        before = begun.nodes.get(path or own)
        can_stand_in = node.kind not in IMMUTABLE and own not in taken and before is not None
        is_by_name = node.kind == "weight" or (node.kind == "fixed" and node.head is not None)
        changed = [*node, True]
        if before is not None and (path or (can_stand_in and _why_not(before, node) == "")):
            why_not = _why_not(before, node)
            if why_not:
                picture.refusals.append((own, why_not))
            else:
                changed = _changed(before, node, known)
                path = path or own
        elif not can_be_made(node):
            picture.refusals.append((own, f"this {_words(node)} was made in the loop"))
        places.append(NEW if is_by_name else path)
        nodes.append(changed)
    _refuse_moved(picture, begun, places)
    return nodes, places


def _refuse_moved(picture: Picture, begun: FirstPicture, places: list[str]) -> None:
    """Refuse a loop over another object than at its first time, and another `with` block: nobody can replace them."""
    for node, place, path in zip(picture.nodes, places, picture.paths, strict=True):
        before = begun.nodes.get(place)
        if before is None or node.kind not in ("iterator", "frame"):
            continue
        there = dict(before.parts)
        for label, part in node.parts:
            if node.kind == "frame" and not str(label).startswith("loop-"):
                continue
            inner = None if isinstance(part, list) else picture.nodes[part]
            if node.kind == "frame" and inner is not None and (inner.kind, inner.fixed) == ("iterator", KEPT):
                picture.refusals.append((path, "this loop is over a dict, a set or a text, and not over a list of it"))
            elif inner is None or places[part] == NEW:
                if not (inner is not None and _is_same_method(inner, there.get(label), begun, places)):
                    picture.refusals.append((path, "this loop is over another object than at its first time"))
            elif places[part] != there.get(label):
                picture.refusals.append((path, "this loop is over another object than at its first time"))


def _is_same_method(node: ObjectNode, there: Any, begun: FirstPicture, places: list[str]) -> bool:
    """Say whether a method, which Python makes anew each time it is asked for, is that of the same object."""
    before = begun.nodes.get(there) if isinstance(there, str) else None
    if before is None or node.kind != "method" or before.kind != "method" or before.head != node.head:
        return False
    owner = node.parts[0][1]
    return bool((owner if isinstance(owner, list) else places[owner]) == before.parts[0][1])


def changed_variables(picture: Picture, begun: FirstPicture) -> list[Any]:
    """Return the variables of modules that hold something else than at the beginning; refuse deleted ones."""
    names = {f"{module}.{name}" for module, entries in picture.globals for name, _ in entries}
    picture.refusals += [(name, "this variable was deleted") for name in begun.variables if name not in names]
    known = [begun.path_of(value, node) for value, node in zip(picture.objects, picture.nodes, strict=True)]
    return [
        [
            module,
            [
                [name, part]
                for name, part in entries
                if f"{module}.{name}" not in begun.variables
                or are_others(begun.variables[f"{module}.{name}"], part if isinstance(part, list) else known[part])
            ],
        ]
        for module, entries in picture.globals
    ]


def _changed(before: ObjectNode, node: ObjectNode, known: list[str]) -> list[Any]:
    """Return a node with what has changed in it, and whether anything has; what has not is left to the script."""
    parts = [[label, part if isinstance(part, list) else known[part]] for label, part in node.parts]
    head = node.head
    if node.kind == "iterator":
        head = _advance(before, node)
    if node.kind in NAMED and not (node.kind == "object" and head[1]):
        there = dict(before.parts)
        kept = [
            both
            for both, (label, part) in zip(node.parts, parts, strict=True)
            if label not in there or are_others(there[label], part)
        ]
        return [node.kind, node.fixed, head, kept, bool(kept) or differ(before, node)]
    return [node.kind, node.fixed, head, node.parts, differ(before, node) or are_others(before.parts, parts)]


def differ(before: ObjectNode, node: ObjectNode) -> bool:
    if node.kind in ("array", "generator of random numbers"):
        return plain_data.encode(before.head) != plain_data.encode(node.head)
    return are_others(before.head, node.head)


def are_others(before: object, now: object) -> bool:
    """Say whether plain values differ, also where they are equal: 1, 1.0 and True do, and 0.0 and -0.0."""
    return repr(before) != repr(now)


def _why_not(before: ObjectNode, node: ObjectNode) -> str:
    """Return why an object cannot be brought from one state to another; empty if it can."""
    if before.kind != node.kind or before.fixed != node.fixed:
        return f"this {_words(node)} has changed in a way that cannot be put back"
    if node.kind == "frame" and not {*before.head} <= {*node.head}:
        return "a variable was deleted"
    if node.kind in NAMED[1:] and not (node.kind == "object" and (before.head[1] or node.head[1])):
        labels = {label for label, _ in node.parts}
        deleted = [label for label, _ in before.parts if label not in labels]
        if deleted:
            return f"its attribute {deleted[0]} was deleted"
    if node.kind == "optimizer":
        groups = [[names for _, names in each.head] for each in (before, node)]
        if groups[1][: len(groups[0])] != groups[0]:
            return "its groups of parameters have changed"
    try:
        if node.kind == "iterator":
            _advance(before, node)
    except Unclear as reason:
        return str(reason)
    return ""


def _advance(before: ObjectNode, node: ObjectNode) -> Any:
    return advance(IteratorPosition(node.fixed, before.head), IteratorPosition(node.fixed, node.head))


def can_be_made(node: ObjectNode) -> bool:
    if node.kind in ("object", "named tuple"):
        return node.head[0] is not None
    if node.kind in ("fixed", "class", "function"):
        return node.head is not None or node.fixed == "ended"
    return node.kind in _CREATED and not (isinstance(node.head, list) and len(node.head) == 2 and node.head[1] is None)


def _words(node: ObjectNode) -> str:
    if node.kind in ("object", "named tuple"):
        return str(node.fixed[1])
    return str(node.fixed[0]) if node.kind == "module" else node.kind
