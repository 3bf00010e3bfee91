"""The script of a command as one value: each part of it is read when it is first asked for, and only once."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from echelon.script import find, imports
from echelon.script.branches import aliases, bound, once
from echelon.script.values import dotted
from echelon.spec import Command, Job


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
        return any(isinstance(node, ast.Attribute) and node.attr == "path" and isinstance(node.value, ast.Name)
                   and node.value.id == "sys" for node in self.nodes)  # fmt: skip

    def mentions(self, name: str) -> bool:
        """Say whether a name or an attribute of this name occurs anywhere."""
        return any(name in (getattr(node, "id", ""), getattr(node, "attr", "")) for node in self.nodes)

    @cached_property
    def _constants(self) -> dict[str, object]:
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


class ScriptReading:
    """What the other rooms ask about a script; they get UsageError if there is no such script."""

    def __init__(self, command: Command, *, cwd: str = "", search_path: Sequence[str] | None = None) -> None:
        self.command = command
        self._cwd = cwd or os.getcwd()
        self._search_path = search_path_of_scripts() if search_path is None else search_path

    @cached_property
    def script(self) -> find.Script:
        is_module = self.command.kind == "module"
        return find.resolve(self.command.target, module=is_module, cwd=self._cwd, search_path=self._search_path)

    @cached_property
    def imports(self) -> imports.Imports:
        return imports.read_imports(self.script)

    @cached_property
    def source(self) -> Source | None:
        """The calls and names of the script; None if this Python cannot parse it, or if it is in an archive."""
        script = self.script
        return Source(path=script.path, tree=script.tree) if script.path and script.tree else None


def of_job(job: Job) -> ScriptReading | None:
    """Return the script of a job, still unread; None for a program, and for a module inside an image."""
    command = job.command
    is_hidden = command.kind == "program" or (command.kind == "module" and job.container)
    return None if is_hidden else ScriptReading(command)


def search_path_of_scripts() -> list[str]:
    """Return sys.path of the script's own Python, after its first entry."""
    ours = os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv[0] else ""
    return [entry for entry in sys.path if entry not in ("", ours)]
