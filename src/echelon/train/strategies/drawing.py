"""Draw a table of the weights, and of the part that each rank holds."""

from typing import Any, Dict, List, Mapping, Sequence, Tuple

from ...pytorch import distributed
from .. import messages
from ..gather import is_dtensor
from .axes import Axes

WHOLE, NOTHING = "whole", "–"


def table(local: Mapping[str, Any], axes: Axes, order: Sequence[str]) -> str:
    """Return a row for each weight, and a column for each rank, with the rows and columns that it holds."""
    mine = {name: (tuple(value.shape), _place(value)) for name, value in local.items()}
    every: List[Any] = [mine]
    if axes.world.size > 1:
        every = messages.gather(mine)
    shapes: Dict[str, Tuple[int, ...]] = {name: entry[0] for part in every for name, entry in part.items()}
    known = {name: place for place, name in enumerate(order)}
    names = sorted(shapes, key=lambda name: (known.get(name, len(known)), name))
    rows = [["weight", "shape", *("rank %d" % rank for rank in range(len(every)))]]
    for name in names:
        cells = [part[name][1] if name in part else NOTHING for part in every]
        rows.append([name, " × ".join(map(str, shapes[name])) or "1", *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]  # noqa: B905
    return "\n".join(lines)


def _place(tensor: Any) -> str:
    """Return which part of a tensor this rank holds, dim by dim, as Python slices."""
    if not is_dtensor(tensor):
        return WHOLE
    shape, offset = distributed.part_of(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(shape) == tuple(tensor.shape):
        return WHOLE
    if 0 in shape:
        return NOTHING
    slices = [
        ":" if size == all_of_it else "%d:%d" % (first, first + size)
        for size, first, all_of_it in zip(shape, offset, tensor.shape)  # noqa: B905
    ]
    return "[%s]" % ", ".join(slices)
