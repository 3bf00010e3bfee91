"""Evaluate an expression that names a folder, as far as reading can tell; nothing of the script is run."""

import ast
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

LONGEST = 4096  # characters or entries of a value: paths are shorter, and the limit bounds our memory
REPEATED = 32  # the most iterations of a loop over folders that are followed
DOTS = 12  # in a name; a longer chain is no module
CONSTANTS = {
    "os.curdir": ".", "os.pardir": "..", "os.sep": "/", "os.path.curdir": ".", "os.path.pardir": "..",
    "os.path.sep": "/",
}  # fmt: skip
PATH_ATTRIBUTES = frozenset({"parent", "parents", "name", "stem"})
TEXT_METHODS = frozenset({"replace", "rstrip", "lstrip", "strip", "removesuffix", "removeprefix", "split", "rsplit"})
FILE_OF_CODE = frozenset({"inspect.getfile", "inspect.getsourcefile", "inspect.getabsfile"})
NOT_TO_BE_HAD = (TypeError, ValueError, LookupError, AttributeError, OSError, RecursionError)


class CannotTell(Exception):
    """Reading cannot evaluate the expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEntry:
    """An entry of sys.path that reading cannot evaluate."""

    why: str
    """The reason as a clause, with the place."""


@dataclass(slots=True, kw_only=True)
class ProcessPlace:
    """The state of a process at one point of its run: its working folder and its sys.path."""

    cwd: str
    """The working folder, "" if reading cannot tell."""
    path: list[Any]
    """sys.path: texts, Unknown, and entries that are no text, which Python skips."""
    given: tuple[str, ...]
    """The initial sys.path."""
    num_changes: int = 0
    is_sure: bool = True
    """Whether `path` is exact, rather than all entries that the process may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The names in one body of source, with their values."""

    file: str
    shown: str
    """The file's name in a message."""
    place: ProcessPlace
    aliases: Mapping[str, str]
    """Imported names, such as `osp` for os.path."""
    names: dict[str, Any] = field(default_factory=dict)
    is_function: bool = False

    @property
    def cwd(self) -> str:
        """Return the working folder; "" in a function, which may be called in another one."""
        return "" if self.is_function else self.place.cwd

    def where(self, node: ast.AST) -> str:
        return f"{self.shown}, line {getattr(node, 'lineno', 1)}"


def dotted(node: ast.AST, aliases: Mapping[str, str]) -> str:
    """Return the full dotted name, resolved through imports, or "" for no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) <= DOTS:
        parts.append(node.attr)
        node = node.value
    return "" if not isinstance(node, ast.Name) else ".".join([aliases.get(node.id, node.id), *reversed(parts)])


def evaluate(node: ast.AST, scope: Scope) -> Any:
    """Return a text, a number, a list or a path of pathlib, or raise CannotTell."""
    kind = KINDS.get(type(node))
    if kind is None:
        raise CannotTell
    try:
        value = kind(node, scope)
    except NOT_TO_BE_HAD:
        raise CannotTell from None
    if isinstance(value, UnknownEntry) or (isinstance(value, (str, list, tuple)) and len(value) > LONGEST):
        raise CannotTell
    return value


def entry(node: ast.AST, scope: Scope) -> Any:
    """Return the future entry of sys.path; an Unknown if reading cannot tell."""
    try:
        return _in_scope(evaluate(node, scope), node, scope)
    except CannotTell:
        return _unknown(node, scope)


def entries(node: ast.AST, scope: Scope) -> list[Any]:
    """Return the future entries of sys.path for a list of folders."""
    try:
        evaluated = evaluate(node, scope)
    except CannotTell:
        evaluated = None
    if isinstance(evaluated, (list, tuple)):
        return [_in_scope(value, node, scope) for value in evaluated]
    return [_unknown(node, scope)]


def _in_scope(value: Any, node: ast.AST, scope: Scope) -> Any:
    is_relative = isinstance(value, str) and not os.path.isabs(value)
    return _unknown(node, scope) if is_relative and scope.is_function else value


def _unknown(node: ast.AST, scope: Scope) -> UnknownEntry:
    return UnknownEntry(why=f"the script puts on sys.path what reading cannot tell ({scope.where(node)})")


def _constant(node: ast.Constant, _: Scope) -> Any:
    return node.value


def _name(node: ast.Name, scope: Scope) -> Any:
    return scope.names[node.id] if node.id in scope.names else _known(dotted(node, scope.aliases), scope)


def _known(name: str, scope: Scope) -> Any:
    if name == "__file__":
        return scope.file
    if name == "sys.path" and not scope.is_function:
        return list(scope.place.path)
    if name in CONSTANTS:
        return CONSTANTS[name]
    raise CannotTell


def _attribute(node: ast.Attribute, scope: Scope) -> Any:
    name = dotted(node, scope.aliases)
    if name == "sys.path" or name in CONSTANTS:
        return _known(name, scope)
    value = evaluate(node.value, scope)
    if node.attr in PATH_ATTRIBUTES and _is_path(value):
        return getattr(value, node.attr)
    raise CannotTell


def _is_path(value: Any) -> bool:
    return isinstance(value, os.PathLike)


def _call(node: ast.Call, scope: Scope) -> Any:
    name = dotted(node.func, scope.aliases)
    if name in FILE_OF_CODE and "currentframe" in ast.dump(node):
        return scope.file
    if node.keywords and not (isinstance(node.func, ast.Attribute) and node.func.attr == "resolve"):
        raise CannotTell  # resolve(strict=True) gives the same or fails
    args = [evaluate(each, scope) for each in node.args]
    if name in FUNCTIONS:
        return FUNCTIONS[name](scope, *args)
    if isinstance(node.func, ast.Attribute):
        return _method(evaluate(node.func.value, scope), node.func.attr, args, scope)
    raise CannotTell


def _method(value: Any, method: str, args: Sequence[Any], scope: Scope) -> Any:
    if isinstance(value, str) and method in TEXT_METHODS:
        return getattr(value, method)(*args)
    if isinstance(value, list) and method == "copy":
        return list(value)
    if _is_path(value) and method == "resolve":
        return type(value)(os.path.realpath(_absolute(scope, value)))
    if _is_path(value) and method == "absolute":
        return type(value)(_absolute(scope, value))
    if _is_path(value) and method in ("joinpath", "as_posix", "with_name"):
        return getattr(value, method)(*args)
    raise CannotTell


def _absolute(scope: Scope, path: Any) -> str:
    text = os.fspath(path)
    if os.path.isabs(text):
        return str(text)
    if not scope.cwd:
        raise CannotTell
    return os.path.join(scope.cwd, text)


def _cwd(scope: Scope) -> str:
    if not scope.cwd:
        raise CannotTell
    return scope.cwd


def _path(_: Scope, *parts: Any) -> Any:
    from pathlib import PurePosixPath  # most scripts do not need these 4 ms

    return PurePosixPath(*parts)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "os.path.dirname": lambda _, path: os.path.dirname(path),
    "os.path.basename": lambda _, path: os.path.basename(path),
    "os.path.split": lambda _, path: os.path.split(path),
    "os.path.join": lambda _, *parts: os.path.join(*parts),
    "os.path.normpath": lambda _, path: os.path.normpath(path),
    "os.path.abspath": lambda scope, path: os.path.normpath(_absolute(scope, path)),
    "os.path.realpath": lambda scope, path: os.path.realpath(_absolute(scope, path)),
    "os.fspath": lambda _, path: os.fspath(path),
    "os.getcwd": _cwd,
    "str": lambda _, value: str(value),
    "list": lambda _, value: list(value),
    "pathlib.Path": _path,
    "pathlib.PurePath": _path,
    "pathlib.PosixPath": _path,
    "pathlib.PurePosixPath": _path,
    "pathlib.Path.cwd": lambda scope: _path(scope, _cwd(scope)),
}


def _operation(node: ast.BinOp, scope: Scope) -> Any:
    left, right = evaluate(node.left, scope), evaluate(node.right, scope)
    if isinstance(node.op, ast.Div) and (_is_path(left) or _is_path(right)):
        return left / right
    if isinstance(node.op, ast.Add) and isinstance(left, (str, list)):
        return left + right
    raise CannotTell


def _negative(node: ast.UnaryOp, scope: Scope) -> Any:
    if isinstance(node.op, ast.USub):
        return -evaluate(node.operand, scope)
    raise CannotTell


def _format(node: ast.JoinedStr, scope: Scope) -> str:
    parts = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            if part.format_spec is not None or part.conversion not in (-1, ord("s")):
                raise CannotTell
            part = part.value
        parts.append(str(evaluate(part, scope)))
    return "".join(parts)


def _part(node: ast.Subscript, scope: Scope) -> Any:
    return evaluate(node.value, scope)[place_of(node.slice, scope)]


def place_of(node: ast.expr, scope: Scope) -> Any:
    if isinstance(node, ast.Slice):
        bounds = (node.lower, node.upper, node.step)
        return slice(*(None if bound is None else evaluate(bound, scope) for bound in bounds))
    return evaluate(node, scope)


def _list(node: ast.List | ast.Tuple, scope: Scope) -> list[Any]:
    values: list[Any] = []
    for element in node.elts:
        values += entries(element.value, scope) if isinstance(element, ast.Starred) else [entry(element, scope)]
    return values


def _comprehension(node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> list[Any]:
    loop = node.generators[0]
    if len(node.generators) > 1 or loop.ifs or not isinstance(loop.target, ast.Name):
        raise CannotTell
    if any(isinstance(inner, (ast.ListComp, ast.GeneratorExp)) for inner in ast.walk(node.elt)):
        raise CannotTell
    values = evaluate(loop.iter, scope)
    if not isinstance(values, list) or len(values) > REPEATED:
        raise CannotTell
    inner = (replace(scope, names={**scope.names, loop.target.id: value}) for value in values)
    return [entry(node.elt, each) for each in inner]


KINDS: dict[type[ast.AST], Callable[[Any, Scope], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Call: _call,
    ast.BinOp: _operation,
    ast.UnaryOp: _negative,
    ast.JoinedStr: _format,
    ast.Subscript: _part,
    ast.List: _list,
    ast.Tuple: _list,
    ast.ListComp: _comprehension,
    ast.GeneratorExp: _comprehension,
}
