"""Serve demands from supplies at the least cost: the transportation problem, by shortest augmenting paths."""

from typing import List, Tuple

_FAR = 1 << 62


def cheapest(demands: List[int], supplies: List[int], costs: List[List[int]], lot: int = 1) -> List[List[int]]:
    """Return the amount that each demand takes of each supply; the total cost is minimal.

    The demands together do not exceed the supplies. Among equally cheap supplies, those that hold a whole `lot` come
    before the others, and otherwise the first comes first.
    """
    flows = [[0] * len(supplies) for _ in demands]
    free = list(supplies)
    for demand, wanted in enumerate(demands):
        while wanted > 0:
            path = _shortest(demand, flows, free, costs, min(lot, wanted))
            if not path:
                break
            amount = min([wanted, free[path[-1][1]], *(flows[row][column] for row, column in _given_back(path))])
            for row, column in path:
                flows[row][column] += amount
            for row, column in _given_back(path):
                flows[row][column] -= amount
            free[path[-1][1]] -= amount
            wanted -= amount
    return flows


def _given_back(path: List[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """Return the amounts that later rows of a path give back: the next row's part of this row's supply."""
    return [(path[index + 1][0], column) for index, (_, column) in enumerate(path[:-1])]


def _shortest(
    start: int, flows: List[List[int]], free: List[int], costs: List[List[int]], lot: int
) -> List[Tuple[int, int]]:
    """Return the cheapest path from a demand to a free supply, as (demand, supply) steps (Bellman and Ford)."""
    rows = [_FAR] * len(flows)
    columns = [_FAR] * len(free)
    row_from = [-1] * len(flows)  # the supply from which a demand was reached
    column_from = [-1] * len(free)
    rows[start] = 0
    changed = [start]
    while changed:
        reached = set()
        for row in changed:
            for column, cost in enumerate(costs[row]):
                if rows[row] + cost < columns[column]:
                    columns[column], column_from[column] = rows[row] + cost, row
                    reached.add(column)
        changed = []
        for column in sorted(reached):
            for row, taken in enumerate(flows):
                price = columns[column] - costs[row][column]
                if taken[column] > 0 and price < rows[row]:
                    rows[row], row_from[row] = price, column
                    changed.append(row)
    ends = [column for column, count in enumerate(free) if count > 0 and columns[column] < _FAR]
    if not ends:
        return []
    column = min(ends, key=lambda end: (columns[end], free[end] < lot, end))
    path = []
    while column >= 0:
        row = column_from[column]
        path.append((row, column))
        column = row_from[row]
    return path[::-1]
