"""Decide which names of a script keep the value that was assigned to them."""

import ast
from collections import Counter
from collections.abc import Iterable, Sequence

from echelon.script.branches import FUNCTIONS

SCOPES = (*FUNCTIONS, ast.Lambda)  # classes are missing: their names are counted too, to be safe


def aliases(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Return the meaning of each imported name, over all nodes of a module."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def reassigned_elsewhere(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Return the names that a function may assign in an outer scope."""
    declarations = (node.names for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)))
    return frozenset(name for names in declarations for name in names)


def bound(body: Sequence[ast.stmt]) -> Counter[str]:
    """Count the bindings of each name in this scope, without inner scopes."""
    counts: Counter[str] = Counter()
    todo: list[ast.AST] = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            counts[node.id] += not isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.alias):
            counts[node.asname or node.name.partition(".")[0]] += 1
        elif isinstance(getattr(node, "name", None), str):  # a function, a class, `except … as`, `case … as`
            counts[node.name] += 1  # type: ignore[attr-defined]
        if not isinstance(node, SCOPES):
            todo.extend(ast.iter_child_nodes(node))
    return +counts


def once(counts: Counter[str]) -> frozenset[str]:
    """Return the names with a single binding."""
    return frozenset(name for name, count in counts.items() if count == 1)


def in_order(body: Sequence[ast.stmt], counts: Counter[str]) -> frozenset[str]:
    """Return the names that are bound only by statements at the top level of the body, which run in order."""
    direct: Counter[str] = Counter()
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, (ast.AnnAssign, ast.For)):
            targets = [node.target]
        direct.update(target.id for target in targets if isinstance(target, ast.Name))
    return frozenset(name for name, count in direct.items() if count == counts[name])
