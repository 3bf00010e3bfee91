"""Follow a script's changes of sys.path and of its working folder, statement by statement."""

import ast
import bisect
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from echelon.hardware import files
from echelon.script import branches
from echelon.script.values import (
    NOT_TO_BE_HAD,
    REPEATED,
    CannotTell,
    ProcessPlace,
    Scope,
    UnknownEntry,
    dotted,
    entries,
    entry,
    evaluate,
    place_of,
)

# a line without these words changes neither sys.path nor the working folder, unless sys.path has an alias
WORDS = re.compile(rb"\bsys\s*\.\s*(?:path|meta_path)|['\"]path['\"]|chdir|addsitedir")
OTHER_NAMES = re.compile(rb"\bfrom\s+sys\s+import\b|\bsys\s+as\b")
SEARCH = "sys.path"
MANY = 100  # the most changes of sys.path that are followed; a generated file may have any number
SMALL = 300  # the largest loop, in nodes, whose iterations are followed
FINDERS = frozenset({"sys.meta_path", "sys.path_hooks"})
ADDING = frozenset({"append", "extend"})
ASKING = frozenset({"copy", "index", "count"})
# functions that do not change a sys.path in their arguments
READERS = frozenset({
    "print", "pprint", "len", "list", "tuple", "set", "sorted", "str", "repr", "enumerate", "reversed", "iter", "join",
    "debug", "info", "warning",
})  # fmt: skip
HARMLESS = (ast.Compare, ast.BinOp, ast.Starred, ast.FormattedValue, ast.comprehension, ast.Expr)
FAILURES = (CannotTell, *NOT_TO_BE_HAD)


def marked_lines(source: bytes) -> Sequence[int]:
    """Return the lines of a source that may change sys.path or the working folder; empty for most files."""
    if b"\r" in source:
        source = source.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if OTHER_NAMES.search(source):
        return range(1, source.count(b"\n") + 2)
    lines, line, end = [], 1, 0
    for match in WORDS.finditer(source):
        line += source.count(b"\n", end, match.start())
        end = match.start()
        lines.append(line)
    return lines


def trace(tree: ast.Module, *, lines: Sequence[int], file: str, shown: str, place: ProcessPlace) -> "EffectTrace":
    """Return a trace of a module's statements; only those on the marked lines are examined closely."""
    nodes = list(ast.walk(tree))
    scope = Scope(file=file, shown=shown, place=place, aliases=branches.aliases(nodes))
    return EffectTrace(tree.body, scope, lines, branches.reassigned_elsewhere(nodes))


class EffectTrace:
    """Apply the effects of one body's statements to the place, in the order in which they are followed."""

    def __init__(self, body: Sequence[ast.stmt], scope: Scope, lines: Sequence[int], spoiled: frozenset[str]) -> None:
        self.scope = scope
        self.lines = lines
        self.place = scope.place
        self.spoiled = spoiled
        counts = branches.bound(body)
        self.local = counts.keys()
        self.lasting = branches.once(counts) - spoiled
        self.steady = self.lasting | (branches.in_order(body, counts) - spoiled)

    def follow(self, node: ast.stmt, certainty: branches.Certainty) -> bool:
        """Apply a statement without the block that it opens; return whether sys.path changed."""
        if self.place.num_changes > MANY:
            return False
        before, is_marked = self.place.path, self._is_marked(node)
        if is_marked:
            self._look(node, certainty)
        if isinstance(node, ast.For):
            self._loop(node, certainty if is_marked else branches.Certainty.SELDOM)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            self._bind(node)
        elif isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            self.scope.names.clear()  # it may import names that hide these
        if self.place.path == before:
            return False
        self.place.num_changes += 1
        if self.place.num_changes > MANY:
            self._lose(node)
        return True

    def _is_marked(self, node: ast.stmt) -> bool:
        start = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
        number = bisect.bisect_left(self.lines, start)
        return number < len(self.lines) and self.lines[number] <= (node.end_lineno or start)

    def _look(self, node: ast.stmt, certainty: branches.Certainty) -> None:
        for part in branches.headers(node):
            known = self._direct(part, certainty)
            self._indirect(part, known)
            for call in (inner for inner in ast.walk(part) if isinstance(inner, ast.Call)):
                self._called(call, part, certainty)
        if isinstance(node, branches.FUNCTIONS):
            self._function(node)

    def _bind(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = {target.id for target in targets if isinstance(target, ast.Name)}
        values: dict[str, Any] = {}
        if node.value is not None and names & self.steady:
            try:
                values = dict.fromkeys(names & self.steady, evaluate(node.value, self.scope))
            except CannotTell:
                values = {}
        for name in names:
            self.scope.names.pop(name, None)
        self.scope.names.update(values)

    def _loop(self, node: ast.For, certainty: branches.Certainty) -> None:
        """Apply all iterations of a loop over folders except the last, whose statements are followed separately."""
        if not isinstance(node.target, ast.Name):
            return
        name = node.target.id
        self.scope.names.pop(name, None)
        try:
            values = evaluate(node.iter, self.scope)
        except CannotTell:
            return
        is_short = isinstance(values, list) and len(values) <= REPEATED
        is_small = sum(1 for _ in ast.walk(node)) <= SMALL
        if certainty < branches.Certainty.CERTAIN or name not in self.steady or not is_short or not is_small:
            return
        for turn, value in enumerate(values, 1):
            self.scope.names[name] = value
            for inner, _ in branches.running(node.body, as_main=False) if turn < len(values) else ():
                self.follow(inner, branches.Certainty.LIKELY)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Follow a function as if it were called at its definition: no call can come earlier."""
        args = node.args
        parameters = (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg)
        inner = EffectTrace(node.body, replace(self.scope, names={}, is_function=True), self.lines, self.spoiled)
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        used -= {*inner.local, *(each.arg for each in parameters if each is not None)}
        used &= self.scope.names.keys() if self.scope.is_function else self.lasting
        inner.scope.names.update((name, self.scope.names[name]) for name in used if name in self.scope.names)
        for step, _ in branches.running(node.body, as_main=False):
            inner.follow(step, branches.Certainty.SELDOM)

    def _direct(self, part: ast.AST, certainty: branches.Certainty) -> ast.AST | None:
        """Follow a direct change of sys.path; return the node that names it."""
        for holder, target in _candidates(part):
            if dotted(holder, self.scope.aliases) == SEARCH:
                try:
                    changed = self._changed(part, target)
                except FAILURES:
                    changed = None
                self._apply(changed, part, certainty)
                return holder
        return None

    def _changed(self, part: ast.AST, target: ast.AST) -> list[Any] | None:
        """Return sys.path after the statement; None if reading cannot tell."""
        path, scope = list(self.place.path), self.scope
        if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
            return self._after_method(branches.tail(part.value.func), part.value.args)
        if isinstance(part, ast.AugAssign):
            return path + entries(part.value, scope) if isinstance(part.op, ast.Add) else None
        if isinstance(part, ast.Delete) and isinstance(target, ast.Subscript):
            del path[place_of(target.slice, scope)]
            return path
        if not isinstance(part, (ast.Assign, ast.AnnAssign)) or part.value is None:
            return None
        if not isinstance(target, ast.Subscript):
            return entries(part.value, scope)
        where = place_of(target.slice, scope)
        path[where] = entries(part.value, scope) if isinstance(where, slice) else entry(part.value, scope)
        return path

    def _after_method(self, method: str, args: Sequence[ast.expr]) -> list[Any] | None:
        path, scope = list(self.place.path), self.scope
        if method == "insert":
            path.insert(evaluate(args[0], scope), entry(args[1], scope))
        elif method == "append":
            path.append(entry(args[0], scope))
        elif method == "extend":
            path.extend(entries(args[0], scope))
        elif method in ("remove", "pop", "clear", "reverse"):
            getattr(path, method)(*(evaluate(each, scope) for each in args))
        elif method not in ASKING:
            return None
        return path

    def _apply(self, changed: list[Any] | None, node: ast.AST, certainty: branches.Certainty) -> None:
        """Apply a change that surely happens or only adds entries; for any other, assume the worse case."""
        path, is_sure = self.place.path, self.place.is_sure and certainty is branches.Certainty.CERTAIN
        if changed is not None and (is_sure or _is_within(path, changed)):
            self.place.path = changed
            self.place.is_sure = is_sure or path == changed
        elif changed is None or not self._only_takes_back(path, changed):
            self._lose(node)

    def _only_takes_back(self, path: list[Any], changed: list[Any]) -> bool:
        initial = self.place.given
        kept = [each for each in path if each in initial]
        return _is_within(changed, path) and kept == [each for each in changed if each in initial]

    def _lose(self, node: ast.AST, name: str = SEARCH) -> None:
        why = f"the script changes {name} in a way that reading cannot follow ({self.scope.where(node)})"
        self.place.path = [UnknownEntry(why=why), *self.place.path]

    def _indirect(self, part: ast.AST, known: ast.AST | None) -> None:
        """Find indirect changes of sys.path: a method in an expression, or an alias."""
        for parent in ast.walk(part):
            for child in ast.iter_child_nodes(parent):
                name = dotted(child, self.scope.aliases)
                if (name != SEARCH and name not in FINDERS) or child is known or _only_reads(parent, child):
                    continue
                if isinstance(parent, ast.Attribute) and parent.attr in ADDING:
                    self._append(child)
                else:
                    self._lose(child, name)

    def _append(self, node: ast.AST) -> None:
        why = f"the script puts on sys.path what reading cannot tell ({self.scope.where(node)})"
        self.place.path = [*self.place.path, UnknownEntry(why=why)]

    def _called(self, call: ast.Call, part: ast.AST, certainty: branches.Certainty) -> None:
        name = branches.tail(call.func)
        if name in ("chdir", "fchdir"):
            is_plain = isinstance(part, ast.Expr) and part.value is call and certainty is branches.Certainty.CERTAIN
            self._change_folder(call, is_plain)
        elif name == "addsitedir":
            self._add_site(call)
        elif name not in ("getattr", "hasattr") and len(call.args) > 1:
            first, second = call.args[:2]
            is_path = isinstance(second, ast.Constant) and second.value == "path"
            if is_path and dotted(first, self.scope.aliases) == "sys":  # setattr, mock.patch.object
                self._lose(call)

    def _change_folder(self, call: ast.Call, is_plain: bool) -> None:
        where = self.scope.where(call)
        why = "the script changes its working folder ({}) after it put {!r} on sys.path"
        self.place.path = [
            UnknownEntry(why=why.format(where, each)) if isinstance(each, str) and not os.path.isabs(each) else each
            for each in self.place.path
        ]
        cwd = ""
        if is_plain and not self.scope.is_function:
            try:
                cwd = os.path.join(self.place.cwd, evaluate(call.args[0], self.scope))
            except FAILURES:
                cwd = ""
        self.place.cwd = cwd if os.path.isabs(cwd) else ""

    def _add_site(self, call: ast.Call) -> None:
        folder = entry(call.args[0], self.scope) if call.args else None
        if not isinstance(folder, (str, os.PathLike)):
            self._append(call)
            return
        path = os.path.normpath(os.path.join(self.place.cwd, folder))
        self.place.path = [*self.place.path, path]
        if not os.path.isdir(path) or any(name.endswith(".pth") for name in files.names(path)):
            self._append(call)


def _candidates(part: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each object that a statement may change, with the target that names the changed part."""
    if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call) and isinstance(part.value.func, ast.Attribute):
        yield part.value.func.value, part.value.func
        return
    targets: Sequence[ast.AST] = part.targets if isinstance(part, (ast.Assign, ast.Delete)) else ()
    if isinstance(part, (ast.AnnAssign, ast.AugAssign)):
        targets = (part.target,)
    for target in targets:
        yield (target.value if isinstance(target, ast.Subscript) else target), target


def _only_reads(parent: ast.AST, child: ast.AST) -> bool:
    if isinstance(parent, ast.Call):
        return child is not parent.func and branches.tail(parent.func) in READERS
    if isinstance(parent, ast.Attribute):
        return parent.attr in ASKING
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Load)
    return isinstance(parent, HARMLESS)


def _is_within(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Say whether the entries occur in the others in the same order."""
    rest = iter(others)
    return all(any(each == other for other in rest) for each in some)
