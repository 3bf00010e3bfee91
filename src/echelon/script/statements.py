"""Decide which statements of a module run when it is started or imported, as far as reading can tell.

An import that is preloaded in vain costs its time once on every node. An import that is missed costs it in every rank,
at the same moment. So an import counts if it probably runs:
- At module level everything counts, also in `try`, `with`, loops and classes. Of an `if` whose test can be evaluated
  (TYPE_CHECKING, `__name__`, Python's version, the platform), the branch that runs counts; of any other `if`, its body.
  An `except` branch never counts: it is for a missing module (see below for sys.path).
- Of the script itself, `main` counts, and each function that the module level or such a function mentions, but only the
  statements at the top of its body, not those below an `if`.
A change of sys.path counts wherever it is, from the earliest moment at which it can happen: a missing preload costs
time, but a preload from the wrong folder is wrong. So a change in a function counts at its definition, and a change in
an own module counts even if an `except` branch imports the module.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from echelon.environment.variables import RANK_NAMES
from echelon.script import hand_updates
from echelon.script.branches import FUNCTIONS, Certainty, running, tail
from echelon.script.changes import EffectTrace
from echelon.script.values import dotted


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportStatement:
    """An import: `import module`, or `from module import attribute`."""

    module: str
    attribute: str = ""
    level: int = 0
    """The number of leading dots."""
    certainty: Certainty = Certainty.CERTAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSetting:
    """An assignment to an environment variable; the name is "" if it cannot be read."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A change of sys.path; the trace has applied it to its place."""

    where: str


Event = ImportStatement | VariableSetting | Moved


def events(
    tree: ast.Module, *, as_main: bool, trace: EffectTrace | None = None, at_most: Certainty = Certainty.CERTAIN
) -> Iterator[Event]:
    """Yield the imports, environment assignments and changes of sys.path that run, in their order.

    `at_most` is the certainty of the module's own import, which limits the certainty of its statements.
    """
    for node, own in running(tree.body, as_main=as_main):
        certainty = min(own, at_most)
        yield from _event(node, certainty)
        if trace is not None and trace.follow(node, certainty):
            yield Moved(where=trace.scope.where(node))
    if as_main:
        for function in reached(tree):
            for node, certainty in running(function.body, as_main=as_main, is_function=True):
                yield from _event(node, min(certainty, Certainty.LIKELY))


def reached(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return `main` and the functions that the module level, or one of these functions, mentions."""
    functions = {node.name: node for node in tree.body if isinstance(node, FUNCTIONS)}
    level = [node for node in tree.body if not isinstance(node, (*FUNCTIONS, ast.ClassDef))]
    todo = ["main", *(name for node in level for name in _names(node))]
    functions_reached: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    for name in todo:  # the list grows during the walk
        if name in functions and name not in functions_reached:
            functions_reached[name] = functions[name]
            todo.extend(_names(functions[name]))
    return list(functions_reached.values())


def _names(node: ast.AST) -> Iterator[str]:
    return (inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name))


def _event(node: ast.stmt, certainty: Certainty) -> Iterator[Event]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield ImportStatement(module=alias.name, certainty=certainty)
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            attribute = "" if alias.name == "*" else alias.name
            yield ImportStatement(module=node.module or "", attribute=attribute, level=node.level, certainty=certainty)
    elif certainty is Certainty.SELDOM:
        return
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and tail(target.value) == "environ":
                yield VariableSetting(key=_text(target.slice))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _call(node.value)


def _call(call: ast.Call) -> Iterator[Event]:
    name = tail(call.func)
    if name == "load_dotenv":
        yield VariableSetting(key="")
    on_environ = isinstance(call.func, ast.Attribute) and tail(call.func.value) == "environ"
    if name == "putenv" or (on_environ and name == "setdefault"):
        yield VariableSetting(key=_text(call.args[0]) if call.args else "")
    elif on_environ and name == "update":
        argument = call.args[0] if call.args else None
        keys = argument.keys if isinstance(argument, ast.Dict) else [argument] if argument is not None else []
        for key in keys:
            yield VariableSetting(key=_text(key))
        for keyword in call.keywords:
            yield VariableSetting(key=keyword.arg or "")


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


CALLS_BACKWARD, CALLS_CHECKPOINT, CALLS_STEP = "$.backward", "$.checkpoint", "$.step()"
_SIGNS = {"backward": CALLS_BACKWARD, "checkpoint": CALLS_CHECKPOINT, "checkpoints": CALLS_CHECKPOINT}


def mentions(tree: ast.Module) -> set[str]:
    """Return every dotted name that is imported or reached through an import, anywhere.

    Three other things count: `$.backward`, `$.checkpoint` and `$.step()` for a call of that method, `$RANK` and similar
    for the name of a variable that identifies a rank, and the signs of `hand_updates`.
    """
    nodes = list(_live(tree))
    aliases: dict[str, str] = {}
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.add(alias.name)
                top = alias.name.partition(".")[0]
                aliases[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module)
            for alias in node.names:
                names.add(f"{node.module}.{alias.name}")
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    by_hand = hand_updates.signs(nodes) if any(name.partition(".")[0] == "torch" for name in names) else set()
    return names | by_hand | {sign for node in nodes if (sign := _sign(node, aliases))}


def _sign(node: ast.AST, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        chain = dotted(node, aliases) if isinstance(root, ast.Name) and root.id in aliases else ""
        return _SIGNS.get(node.attr, "") if chain in ("", "echelon.checkpoints") else chain
    if isinstance(node, ast.Call):
        return CALLS_STEP if isinstance(node.func, ast.Attribute) and node.func.attr == "step" else ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in RANK_NAMES:
        return "$" + node.value
    return ""


def _live(tree: ast.Module) -> Iterator[ast.AST]:
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and tail(node.test) == "TYPE_CHECKING":
            todo.extend(node.orelse)
            continue
        for field in node._fields:  # as ast.iter_child_nodes(), without its generators
            value = getattr(node, field, None)
            if isinstance(value, list):
                todo += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                todo.append(value)
