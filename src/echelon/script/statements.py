"""Which statements of a module run when it is started or imported, as far as reading can tell.

The rule: an import that is preloaded in vain costs its time once on every node, one that is missed costs it
in every rank, at the same moment. So what probably runs is taken:
- at module level: everything, also in `try`, `with`, loops and classes; of an `if` whose test can be read
  (TYPE_CHECKING, `__name__`, Python's version, the platform) the branch that runs, of any other its body;
  never an `except` branch, which is for when the wanted module is missing;
- of the script itself also `main` and each function that the module level or a function so reached mentions,
  but there only what stands at the top of the body, not below an `if`.
"""

import ast
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST = 12  # dots in a name; a longer chain is no module
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TRIES = tuple(getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name))  # TryStar: 3.11
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One import: `import module`, or `from module import attribute`."""

    module: str
    attribute: str = ""
    level: int = 0
    """The number of leading dots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An assignment to an environment variable; the name is "" where it cannot be read."""

    key: str


Event = Wanted | Setting


def events(tree: ast.Module, *, as_main: bool) -> Iterator[Event]:
    """Yield the imports and the environment assignments that run, in their order."""
    for node in _running(tree.body, as_main=as_main):
        yield from _event(node)
    if as_main:
        for function in reached(tree):
            for node in _running(function.body, as_main=as_main, is_function=True):
                yield from _event(node)


def _running(body: Sequence[ast.stmt], *, as_main: bool, is_function: bool = False) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If):
            inner = _branch(node, as_main=as_main, is_function=is_function)
        elif isinstance(node, TRIES):
            inner = [*node.body, *node.orelse, *node.finalbody]
        elif isinstance(node, (ast.With, ast.AsyncWith, ast.For, ast.While, ast.ClassDef)):
            inner = node.body
        else:
            yield node
            continue
        yield from _running(inner, as_main=as_main, is_function=is_function)


def _branch(node: ast.If, *, as_main: bool, is_function: bool) -> Sequence[ast.stmt]:
    while True:
        taken = decide(node.test, as_main=as_main)
        if taken or (taken is None and not is_function):
            return node.body
        if taken is None:
            return []
        if len(node.orelse) != 1 or not isinstance(node.orelse[0], ast.If):
            return node.orelse
        node = node.orelse[0]  # a chain of elif may be longer than Python's stack is deep


def decide(test: ast.expr, *, as_main: bool) -> bool | None:
    """Return what the test of an `if` gives here, or None where reading cannot tell."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if _tail(test) == "TYPE_CHECKING":
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
    names: dict[str, object] = {
        "version_info": tuple(sys.version_info[:3]),
        "platform": sys.platform,
        "name": os.name,
    }
    if isinstance(side, ast.Attribute) and isinstance(side.value, ast.Name) and side.value.id in ("sys", "os"):
        return names.get(side.attr)
    if isinstance(side, ast.Constant):
        return side.value
    if isinstance(side, ast.Tuple) and all(isinstance(part, ast.Constant) for part in side.elts):
        return tuple(part.value for part in side.elts if isinstance(part, ast.Constant))
    return None


def reached(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return `main` and the functions that the module level, or one of these, mentions."""
    functions = {node.name: node for node in tree.body if isinstance(node, FUNCTIONS)}
    level = [node for node in tree.body if not isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    todo = ["main", *(name for node in level for name in _names(node))]
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for name in todo:  # it grows while it is walked
        if name in functions and name not in found:
            found[name] = functions[name]
            todo.extend(_names(functions[name]))
    return list(found.values())


def _names(node: ast.AST) -> Iterator[str]:
    return (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))


def _event(node: ast.stmt) -> Iterator[Event]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Wanted(module=alias.name)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            attribute = "" if alias.name == "*" else alias.name
            yield Wanted(module=node.module or "", attribute=attribute, level=node.level)
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _tail(target.value) == "environ":
                yield Setting(key=_text(target.slice))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _call(node.value)


def _call(call: ast.Call) -> Iterator[Event]:
    name = _tail(call.func)
    if name == "load_dotenv":
        yield Setting(key="")
    on_environ = isinstance(call.func, ast.Attribute) and _tail(call.func.value) == "environ"
    if name == "putenv" or (on_environ and name == "setdefault"):
        yield Setting(key=_text(call.args[0]) if call.args else "")
    elif on_environ and name == "update":
        given = call.args[0] if call.args else None
        keys = given.keys if isinstance(given, ast.Dict) else [given] if given is not None else []
        for key in keys:
            yield Setting(key=_text(key))
        for keyword in call.keywords:
            yield Setting(key=keyword.arg or "")


def _tail(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def mentions(tree: ast.Module) -> set[str]:
    """Return every dotted name that is imported or reached through an import, wherever it stands."""
    nodes = list(_live(tree))
    aliases: dict[str, str] = {}
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.add(alias.name)
                top = alias.name.partition(".")[0]
                aliases[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module)
            for alias in node.names:
                found.add(f"{node.module}.{alias.name}")
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Attribute):
            chain = _chain(node, aliases)
            if chain:
                found.add(chain)
    return found


def _chain(node: ast.Attribute, aliases: dict[str, str]) -> str:
    parts: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
        if len(parts) > LONGEST:
            return ""
    if not isinstance(inner, ast.Name) or inner.id not in aliases:
        return ""
    return ".".join([aliases[inner.id], *reversed(parts)])


def _live(tree: ast.Module) -> Iterator[ast.AST]:
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and _tail(node.test) == "TYPE_CHECKING":
            todo.extend(node.orelse)
        else:
            todo.extend(ast.iter_child_nodes(node))
