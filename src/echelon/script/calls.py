"""Find a script's imports of packages, and its calls with arguments that can be read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from echelon.script.branches import aliases, bound, once
from echelon.script.values import dotted


class UnknownArgument:
    """An argument that reading cannot evaluate."""


UNKNOWN = UnknownArgument()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a requested function."""

    name: str
    """The dotted name, resolved through imports."""
    line: int
    arguments: Mapping[str, object]
    """Keyword arguments: a constant, a list of constants, or UNKNOWN."""
    has_more: bool
    """Whether there are positional arguments, or a ** with unknown names."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A parsed script."""

    path: str
    tree: ast.Module

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def certain_imports(self) -> dict[str, int]:
        """Top-level packages that are always imported, outside of `try`, `if` and functions; each with its line."""
        return _imports(self.tree.body)

    @cached_property
    def all_imports(self) -> dict[str, int]:
        """Top-level packages that are imported anywhere; each with a line."""
        return _imports(self.nodes)

    @cached_property
    def moves_path(self) -> bool:
        """Whether the script uses sys.path."""
        return any(isinstance(node, ast.Attribute) and node.attr == "path" and isinstance(node.value, ast.Name)
                   and node.value.id == "sys" for node in self.nodes)  # fmt: skip

    def mentions(self, name: str) -> bool:
        """Say whether a name or an attribute of this name occurs anywhere."""
        return any(name in (getattr(node, "id", ""), getattr(node, "attr", "")) for node in self.nodes)

    @cached_property
    def _constants(self) -> dict[str, object]:
        """Names that are constant throughout."""
        names = once(bound(self.tree.body))
        pairs = (
            (node.targets[0].id, node.value.value)
            for node in self.tree.body
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
        )  # fmt: skip
        return {name: value for name, value in pairs if name in names}

    def calls(self, names: Iterable[str]) -> list[Call]:
        """Return the calls of these dotted names, in source order."""
        wanted, known = frozenset(names), aliases(self.nodes)
        calls = []
        for node in self.nodes:
            name = dotted(node.func, known) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name in wanted:
                arguments = {each.arg: self._value(each.value) for each in node.keywords if each.arg}
                has_more = bool(node.args) or any(each.arg is None for each in node.keywords)
                calls.append(Call(name=name, line=node.lineno, arguments=arguments, has_more=has_more))
        return sorted(calls, key=lambda call: call.line)

    def _value(self, node: ast.expr) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = node.operand.value
            return -value if isinstance(value, (int, float)) else UNKNOWN
        if isinstance(node, ast.Name):
            return self._constants.get(node.id, UNKNOWN)
        if isinstance(node, (ast.List, ast.Tuple)):
            values = [self._value(each) for each in node.elts]
            return UNKNOWN if UNKNOWN in values else values
        return UNKNOWN


def _imports(nodes: Iterable[ast.AST]) -> dict[str, int]:
    lines: dict[str, int] = {}
    for node in nodes:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        for name in names:
            lines.setdefault(name.partition(".")[0], node.lineno)  # type: ignore[attr-defined]
    return lines
