"""A Python script as rules see it: its tree, its names, and which parts only one rank runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from echelon.lint.finding import Edit, Hit, lines_of
from echelon.script.branches import aliases, tail
from echelon.script.values import dotted

OF_A_RANK = re.compile(
    r"rank|is_main|is_master|main_process|master_process|\bmaster\b|primary|is_global_zero|gpu_id|world_process_zero"
)
NUMBER_OF_A_RANK = re.compile(
    r"(?:int\()?os\.(?:environ|getenv)[^+%]*(?:RANK|PROCID|LOCALID)[^+%]*|[\w.]*get_(?:local_|node_local_)?rank\(\)"
)
SERVED = frozenset({"lightning", "pytorch_lightning", "accelerate", "transformers", "horovod", "composer", "ray"})
"""Frameworks that distribute data, choose devices and write files once by themselves."""
GETTERS = ("os.environ.get", "os.getenv")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MOST_CALLERS = 20  # a function with more calls is unlikely to be one that saves
DEEPEST = 4  # the longest chain of callers that is followed


@dataclass(frozen=True, kw_only=True)
class Program:
    """A Python file."""

    path: str
    text: str
    tree: ast.Module
    sees: str = ""
    """Whether each rank sees its "own" device alone or "all" of its node; empty if no job says it."""
    num_nodes: int = 0
    """The nodes of the job that runs it; 0 without a job."""

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return sorted(
            ast.walk(self.tree), key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
        )

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def aliases(self) -> dict[str, str]:
        """The meaning of imported names."""
        return aliases(self.nodes)

    @cached_property
    def uses(self) -> frozenset[str]:
        """The top-level packages that are imported."""
        return frozenset(name.partition(".")[0] for name in self.aliases.values())

    def name(self, node: ast.AST) -> str:
        """Return the dotted name of an expression, resolved through imports; empty for no name."""
        return dotted(node, self.aliases)

    @cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        return [(self.name(node.func), node) for node in self.nodes if isinstance(node, ast.Call)]

    def called(self, *tails: str) -> Iterator[ast.Call]:
        """Yield the calls of functions whose last word is one of these."""
        return (node for name, node in self.calls if (name.rpartition(".")[2] or tail(node.func)) in tails)

    @cached_property
    def texts(self) -> frozenset[str]:
        constants = (node.value for node in self.nodes if isinstance(node, ast.Constant))
        return frozenset(value for value in constants if isinstance(value, str))

    @cached_property
    def words(self) -> frozenset[str]:
        names = {node.id for node in self.nodes if isinstance(node, ast.Name)}
        attributes = {node.attr for node in self.nodes if isinstance(node, ast.Attribute)}
        return frozenset(names | attributes | {name.rpartition(".")[2] for name in self.aliases.values()})

    @cached_property
    def is_distributed(self) -> bool:
        """Whether the script is written for several ranks with torch's own parts."""
        parts = {"DistributedDataParallel", "init_process_group", "FullyShardedDataParallel", "fully_shard"}
        parts |= {"init_distributed"} if "deepspeed" in self.uses else set()
        return bool(parts & self.words) and not self.is_served

    @cached_property
    def needs_device(self) -> int:
        """The first line that fails without a device; 0 if there is none, or if the script checks for devices."""
        if {"is_available", "device_count", "accelerator"} & self.words:
            return 0
        for name, call in self.calls:
            first = constant(call.args[0]) if call.args else None
            is_named = tail(call.func) in ("to", "device") and isinstance(first, str) and first.startswith("cuda")
            if is_named or (tail(call.func) == "cuda" and not call.args) or name == "torch.cuda.set_device":
                return call.lineno
        return 0

    @cached_property
    def is_served(self) -> bool:
        """Whether a framework does the work that the rules for ranks check."""
        return bool(SERVED & self.uses) or (self.is_stepped and any(keyword(c, "training_data") for _, c in self.calls))

    @cached_property
    def is_stepped(self) -> bool:
        """Whether DeepSpeed takes the device of each rank, and clears its gradients."""
        return "deepspeed" in self.uses and "initialize" in self.words

    @cached_property
    def always_meets(self) -> bool:
        """Whether the script always waits for other ranks: no test stands before init_process_group."""
        calls = list(self.called("init_process_group", "init_distributed"))
        return bool(calls) and not any(self.is_tested(call) for call in calls)

    def is_tested(self, node: ast.AST, depth: int = 0) -> bool:
        """Say whether a node runs only behind a test other than that of the main module, also through callers."""
        for parent in self.around(node):
            if isinstance(parent, ast.If) and "__name__" not in ast.unparse(parent.test):
                return True
            if isinstance(parent, (ast.Try, ast.IfExp)):
                return True
            if isinstance(parent, FUNCTIONS):
                places = (self.callers(parent) or self._handed(parent)) if depth < DEEPEST else []
                lines = [each.lineno for each in ast.walk(parent) if isinstance(each, ast.Return)]
                may_end = any(line < getattr(node, "lineno", 0) for line in lines)
                return may_end or not places or any(self.is_tested(place, depth + 1) for place in places)
        return False

    def _handed(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.Call]:
        """Return the calls that get a function as an argument, as mp.spawn does."""
        names = [(call, [*call.args, *(each.value for each in call.keywords)]) for _, call in self.calls]
        return [call for call, given in names if any(getattr(each, "id", "") == function.name for each in given)]

    @cached_property
    def required(self) -> frozenset[str]:
        """The variables of the environment without which the script fails, wherever it reads them."""
        return frozenset(name for name, node in self._read if not self._has_other(name, node))

    @cached_property
    def _read(self) -> list[tuple[str, ast.expr]]:
        """Return each variable that is read without a default of its own."""
        found: list[tuple[str, ast.expr]] = []
        for node in self.nodes:
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                if self.name(node.value) == "os.environ" and isinstance(constant(node.slice), str):
                    found.append((str(constant(node.slice)), node))
            elif isinstance(node, ast.Call) and node.args and self.name(node.func) in GETTERS:
                is_alone = len(node.args) == 1 and not node.keywords
                found += [(str(constant(node.args[0])), node)] if is_alone else []
        return found

    def _has_other(self, name: str, node: ast.expr) -> bool:
        """Say whether a script reads on if a variable is not set: a default, a test, an assignment, an except."""
        given = (
            rf"(?:setdefault|update|putenv)\([^)]*{name}|\[['\"]{name}['\"]\]\s*=[^=]|['\"]{name}['\"] (?:not )?in\b"
        )
        around = list(self.around(node))
        is_tested = any(isinstance(each, (ast.If, ast.IfExp, ast.BoolOp, ast.Try)) for each in around)
        is_default = isinstance(around[0], ast.Call) and self.name(around[0].func) in GETTERS
        is_used = isinstance(node, ast.Subscript) or (isinstance(around[0], ast.Call) and tail(around[0].func) == "int")
        return is_tested or is_default or not is_used or re.search(given, self.text) is not None

    @cached_property
    def functions(self) -> dict[str, list[ast.AST]]:
        defined = {node.name for node in self.nodes if isinstance(node, FUNCTIONS)}
        calls_of: dict[str, list[ast.AST]] = {name: [] for name in defined}
        for _, call in self.calls:
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            is_foreign = isinstance(owner, ast.Name) and owner.id in self.aliases  # torch.save is not the file's `save`
            if tail(call.func) in defined and not is_foreign:
                calls_of[tail(call.func)].append(call)
        return calls_of

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the ancestors of a node, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        return next((each for each in self.around(node) if isinstance(each, FUNCTIONS)), None)

    @cached_property
    def flags(self) -> frozenset[str]:
        """Variables that hold whether this is a certain rank: first = get_rank() == 0."""
        names = set()
        for node in self.nodes:
            is_test = isinstance(node, ast.Assign) and isinstance(node.value, (ast.Compare, ast.BoolOp, ast.UnaryOp))
            if is_test and isinstance(node, ast.Assign) and OF_A_RANK.search(ast.unparse(node.value).lower()):
                names |= {tail(target) for target in node.targets if isinstance(target, (ast.Name, ast.Attribute))}
        return frozenset(names)

    def speaks_of_rank(self, node: ast.AST) -> bool:
        known = self._speaking.get(node)
        if known is None:
            words = {tail(each) for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute))}
            known = bool(words & (self.flags | self.ranks)) or OF_A_RANK.search(ast.unparse(node).lower()) is not None
            self._speaking[node] = known
        return known

    @cached_property
    def _speaking(self) -> dict[ast.AST, bool]:
        return {}

    def guard(self, node: ast.AST) -> ast.If | ast.IfExp | None:
        """Return the `if` that lets only some ranks reach this node, within its own function."""
        child: ast.AST = node
        for parent in self.around(node):
            if isinstance(parent, ast.If) and child is not parent.test and self.speaks_of_rank(parent.test):
                return parent
            if isinstance(parent, ast.IfExp) and self.speaks_of_rank(parent.test):
                return parent
            if isinstance(parent, FUNCTIONS):
                return self._early_return(parent, node)
            child = parent
        return self._early_return(self.tree, node)

    def is_guarded(self, node: ast.AST, *, depth: int = 0) -> bool:
        """Say whether only some ranks reach this node, also through the callers of its function."""
        if self.guard(node) is not None:
            return True
        if any(isinstance(parent, (ast.With, ast.AsyncWith)) and _first_only(parent) for parent in self.around(node)):
            return True
        function = self.function(node)
        if function is None or depth >= DEEPEST:
            return False
        if function not in self._guarded:
            self._guarded[function] = False  # the answer for a recursive function
            is_marked = any(self.speaks_of_rank(each) for each in function.decorator_list)
            places = self.callers(function)
            self._guarded[function] = is_marked or (
                bool(places) and all(self.is_guarded(place, depth=depth + 1) for place in places)
            )
        return self._guarded[function]

    @cached_property
    def _guarded(self) -> dict[ast.AST, bool]:
        return {}

    def callers(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.AST]:
        """Return the places that call a function of the file, except inside of itself."""
        first, last = function.lineno, function.end_lineno or function.lineno
        places = self.functions.get(function.name, [])
        outside = (place for place in places if not first <= getattr(place, "lineno", 0) <= last)
        return list(islice(outside, MOST_CALLERS))

    @cached_property
    def ranks(self) -> frozenset[str]:
        """Variables that hold a rank, global or local."""
        return frozenset(name for name, _ in self._numbers)

    @cached_property
    def local_ranks(self) -> frozenset[str]:
        return frozenset({"local_rank", *(name for name, text in self._numbers if "LOCAL" in text.upper())})

    @cached_property
    def _numbers(self) -> list[tuple[str, str]]:
        names = []
        for node in self.nodes:
            text = ast.unparse(node.value) if isinstance(node, ast.Assign) else ""
            if isinstance(node, ast.Assign) and NUMBER_OF_A_RANK.fullmatch(text):
                names += [(tail(each), text) for each in node.targets if isinstance(each, (ast.Name, ast.Attribute))]
        return names

    def _early_return(self, scope: ast.AST, node: ast.AST) -> ast.If | None:
        """Return an `if rank != 0: return` before a node, at the top level of its function."""
        returns = self._returns.get(scope)
        if returns is None:
            returns = [
                each
                for each in getattr(scope, "body", [])
                if isinstance(each, ast.If) and isinstance(each.body[-1], (ast.Return, ast.Raise))
                if self.speaks_of_rank(each.test)
            ][:1]
            self._returns[scope] = returns
        return returns[0] if returns and returns[0].lineno < getattr(node, "lineno", 0) else None

    @cached_property
    def _returns(self) -> dict[ast.AST, list[ast.If]]:
        return {}

    def ifs_by_rank(self, scope: ast.AST) -> list[tuple[ast.If, set[str]]]:
        """Return each `if` of a function that depends on the rank, with the names of the functions that it calls."""
        if scope not in self._ifs:
            ifs = [each for each in ast.walk(scope) if isinstance(each, ast.If) and self.speaks_of_rank(each.test)]
            calls = [[tail(inner.func) for inner in ast.walk(each) if isinstance(inner, ast.Call)] for each in ifs]
            self._ifs[scope] = [(each, set(names)) for each, names in zip(ifs, calls, strict=True)]
        return self._ifs[scope]

    @cached_property
    def _ifs(self) -> dict[ast.AST, list[tuple[ast.If, set[str]]]]:
        return {}

    def hit(self, node: ast.AST, message: str, repair: str = "", edits: tuple[Edit, ...] = ()) -> Hit:
        line, start, end = self._span(node)
        width = max(1, end - start)
        return Hit(line=line, column=start + 1, width=width, message=message, repair=repair, edits=edits)

    def edit(self, node: ast.AST, new: str) -> tuple[Edit, ...]:
        """Return the edit that replaces a node; none for a node of several lines."""
        line, start, end = self._span(node)
        if getattr(node, "end_lineno", 0) != line:
            return ()
        return (Edit(line=line, column=start + 1, old=self.lines[line - 1][start:end], new=new),)

    def source(self, node: ast.AST) -> str:
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def line_before(self, statement: ast.stmt, text: str) -> tuple[Edit, ...]:
        """Return the edit that inserts a line before a statement; none if the statement does not begin its line."""
        line, start, _ = self._span(statement)
        indent = self.lines[line - 1][:start]
        return () if indent.strip() else (Edit(line=line, column=1, old="", new=f"{indent}{text}\n"),)

    def line_after(self, statement: ast.stmt, text: str) -> tuple[Edit, ...]:
        """Return the edit that inserts a line after a statement; none if the statement shares its lines."""
        line, start, _ = self._span(statement)
        last = statement.end_lineno or line
        indent, whole = self.lines[line - 1][:start], self.lines[last - 1]
        rest = whole.encode()[statement.end_col_offset or 0 :].decode("utf-8", "ignore").strip()
        if indent.strip() or (rest and not rest.startswith("#")):
            return ()
        return (Edit(line=last, column=len(whole) + 1, old="", new=f"\n{indent}{text}"),)

    def _span(self, node: ast.AST) -> tuple[int, int, int]:
        """Return the line on which a node begins, and its first and last character on it."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        end = len(text.rstrip())
        if getattr(node, "end_lineno", 0) == line:
            end = len(text.encode()[: getattr(node, "end_col_offset", 0)].decode("utf-8", "ignore"))
        return line, len(text.encode()[:column].decode("utf-8", "ignore")), end

    @cached_property
    def lines(self) -> list[str]:
        return lines_of(re.sub(r"\r\n?", "\n", self.text))


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


def constant(node: ast.AST | None) -> object:
    """Return the value of a constant; None for any other node."""
    return node.value if isinstance(node, ast.Constant) else None


def _first_only(node: ast.With | ast.AsyncWith) -> bool:
    """Say whether a `with main_process_first():` lets one rank go first: the others then find its files."""
    return any("first" in tail(getattr(item.context_expr, "func", item.context_expr)) for item in node.items)
