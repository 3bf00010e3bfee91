"""Decide which statements of a body run, and which names keep their value, as far as reading can tell."""

import ast
import enum
import operator
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))  # TryStar: 3.11
LOOPS = (ast.For, ast.AsyncFor, ast.While)
BLOCKS = (ast.With, ast.AsyncWith, ast.ClassDef)
OPENING = (ast.If, *TRIES, *LOOPS, *BLOCKS)
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Certainty(enum.IntEnum):
    """How certain it is that a statement runs."""

    SELDOM = 0
    """An `except` branch, or the `else` of a test that cannot be evaluated."""
    LIKELY = 1
    CERTAIN = 2


Step = tuple[ast.stmt, Certainty]


def running(body: Sequence[ast.stmt], *, as_main: bool, is_function: bool = False) -> Iterator[Step]:
    """Yield the statements in order; those of a block follow the statement that holds it.

    The walk has its own stack: a chain of elif may be deeper than Python's recursion limit.
    """
    todo: list[Step] = [(node, Certainty.CERTAIN) for node in reversed(body)]
    while todo:
        node, certainty = todo.pop()
        yield node, certainty
        if isinstance(node, OPENING):
            inner = list(_inner(node, as_main=as_main, is_function=is_function))
            todo += [(each, min(own, certainty)) for each, own in reversed(inner)]


def _inner(node: ast.stmt, *, as_main: bool, is_function: bool) -> Iterator[Step]:
    if isinstance(node, ast.If):
        taken = decide(node.test, as_main=as_main)
        if taken is None:
            yield from _each(node.body, Certainty.SELDOM if is_function else Certainty.LIKELY)
            yield from _each(node.orelse, Certainty.SELDOM)
        else:
            yield from _each(node.body if taken else node.orelse, Certainty.CERTAIN)
    elif isinstance(node, TRIES):
        yield from _each(node.body[:1], Certainty.CERTAIN)
        yield from _each(node.body[1:], Certainty.LIKELY)  # the first may have failed
        for handler in node.handlers:
            yield from _each(handler.body, Certainty.SELDOM)
        yield from _each(node.orelse, Certainty.LIKELY)
        yield from _each(node.finalbody, Certainty.CERTAIN)
    elif isinstance(node, LOOPS):
        yield from _each(node.body, Certainty.LIKELY)
        yield from _each(node.orelse, Certainty.SELDOM)
    elif isinstance(node, BLOCKS):
        yield from _each(node.body, Certainty.CERTAIN)


def _each(body: Sequence[ast.stmt], certainty: Certainty) -> Iterator[Step]:
    return ((node, certainty) for node in body)


def headers(node: ast.stmt) -> list[ast.AST]:
    """Return the parts of a statement that run in its place; statements in its blocks are yielded separately."""
    if isinstance(node, (ast.If, ast.While)):
        return [node.test]
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return [node.iter]
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [item.context_expr for item in node.items]
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases]
    if isinstance(node, FUNCTIONS):
        return [*node.decorator_list, *node.args.defaults]
    return [] if isinstance(node, TRIES) else [node]


def decide(test: ast.expr, *, as_main: bool) -> bool | None:
    """Evaluate the test of an `if`; None if reading cannot tell."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if tail(test) == "TYPE_CHECKING":
        return False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = decide(test.operand, as_main=as_main)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        decisive = isinstance(test.op, ast.Or)
        parts = [decide(value, as_main=as_main) for value in test.values]
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compare(test, as_main=as_main)
    return None


def _compare(test: ast.Compare, *, as_main: bool) -> bool | None:
    left, right = (_known(side, as_main=as_main) for side in (test.left, test.comparators[0]))
    apply = COMPARE.get(type(test.ops[0]))
    if left is None or right is None or apply is None:
        return None
    try:
        return bool(apply(left, right))
    except TypeError:
        return None


def _known(side: ast.expr, *, as_main: bool) -> object:
    if isinstance(side, ast.Name) and side.id == "__name__":
        return "__main__" if as_main else "a module"
    names: dict[str, object] = {"version_info": tuple(sys.version_info[:3]), "platform": sys.platform, "name": os.name}
    if isinstance(side, ast.Attribute) and isinstance(side.value, ast.Name) and side.value.id in ("sys", "os"):
        return names.get(side.attr)
    if isinstance(side, ast.Constant):
        return side.value
    if isinstance(side, ast.Tuple) and all(isinstance(part, ast.Constant) for part in side.elts):
        return tuple(part.value for part in side.elts if isinstance(part, ast.Constant))
    return None


def tail(node: ast.expr) -> str:
    """Return the last word of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


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
