"""Change a script for one device into one for a peer, line by line as its guide says.

The steps are those of the guides: the import and the object after the imports; `prepare` or `setup` after models,
optimizer and schedulers are built; loaders that are trained from are prepared where they are built; `x.backward()`
becomes the tool's. Loaders of an evaluation stay as they are, so that every rank sees all of it and nothing needs to be
gathered. One rank writes files, and the others wait for it. A script in which one of the steps has no place is not
changed by a guess: NeedsMore says what was not found.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from benchmarks.peers_tools.guides import Guide

OF_EVALUATION = re.compile(r"(^|_)(val|valid|validation|test|eval)(_|$)")
WRITES = ("torch.save", "os.replace", "os.rename", "os.makedirs", "np.save", "np.savez")
REMOVES = ("os.remove", "shutil.rmtree")
Block = list[ast.stmt]


class NeedsMore(Exception):
    """The lines of the guide have no place in this script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A script after the change."""

    text: str
    num_changed: int
    """Lines that are new or different."""


def rewrite(source: str, guide: Guide, num_ranks: int) -> Rewritten:
    """Return a script that uses a peer."""
    tree = ast.parse(source)
    original = ast.unparse(tree)
    writer = _Writer(guide, _Names(tree))
    changed = writer.visit(tree)
    writer.require_all_steps()
    place = 1 + max(
        (i for i, one in enumerate(changed.body) if isinstance(one, ast.Import | ast.ImportFrom)), default=0
    )
    changed.body[place:place] = ast.parse(guide.head(num_ranks)).body
    text = ast.unparse(ast.fix_missing_locations(changed)) + "\n"
    return Rewritten(text=text, num_changed=_count_changed(original, text))


def in_file_order(source: str) -> str:
    """Return a script that takes its samples in the order of its datasets."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "shuffle":
            node.value = ast.Constant(False)
        if isinstance(node, ast.Dict):
            keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
            node.values = [
                ast.Constant(False) if key == "shuffle" else value for key, value in zip(keys, node.values, strict=True)
            ]
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _count_changed(before: str, after: str) -> int:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return sum(line.startswith("+ ") for line in lines)


class _Names:
    """What a person knows of a script's names after reading it."""

    def __init__(self, tree: ast.Module) -> None:
        self.optimizer_classes = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and any("Optimizer" in ast.unparse(base) for base in node.bases)
        }
        imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        self.scheduler_classes = {
            alias.name for node in imported if node.module == "torch.optim.lr_scheduler" for alias in node.names
        }
        self.of_evaluation = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and OF_EVALUATION.search(_last_word(node.targets[0]))
        }

    def is_optimizer(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or self.is_scheduler(node):
            return False
        function = ast.unparse(node.func)
        is_ours = bool(re.search(r"\boptim\b(?!\.swa_utils)", function)) and not function.endswith(
            (".step", ".zero_grad")
        )
        return (is_ours or function in self.optimizer_classes) and bool(node.args)

    def is_scheduler(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        function = ast.unparse(node.func)
        return "lr_scheduler" in function or function in self.scheduler_classes


class _Writer(ast.NodeTransformer):
    """Put the lines of a guide into a tree."""

    def __init__(self, guide: Guide, names: _Names) -> None:
        self._guide, self._names = guide, names
        self._num_loaders = self._num_backwards = self._num_setups = 0
        self._num_evaluations = self._num_branches = 0
        """How many blocks without gradients, and how many branches, stand around the node."""

    def require_all_steps(self) -> None:
        steps = {
            "no loader is trained from": self._num_loaders,
            "no backward() is called": self._num_backwards,
            "no optimizer is built from the parameters of named models": self._num_setups,
        }
        missing = [reason for reason, count in steps.items() if not count]
        if missing:
            raise NeedsMore("; ".join(missing))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit what is inside, then put statements into its blocks."""
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, self._block(block))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._visit_without_gradients(node, [ast.unparse(one) for one in node.decorator_list])

    def visit_With(self, node: ast.With) -> ast.AST:
        return self._visit_without_gradients(node, [ast.unparse(item.context_expr) for item in node.items])

    def _visit_without_gradients(self, node: ast.AST, around: Sequence[str]) -> ast.AST:
        is_evaluation = any(re.search(r"\b(no_grad|inference_mode)\b", text) for text in around)
        self._num_evaluations += is_evaluation
        self.generic_visit(node)
        self._num_evaluations -= is_evaluation
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        is_branch = "__name__" not in ast.unparse(node.test)
        self._num_branches += is_branch
        self.generic_visit(node)
        self._num_branches -= is_branch
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_evaluation = self._num_evaluations or id(node) in self._names.of_evaluation
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            self._num_backwards += 1
            function = ast.parse(f"{self._guide.variable}.backward", mode="eval").body
            return ast.Call(function, [node.func.value, *node.args], node.keywords)
        if ast.unparse(node.func).split(".")[-1] == "DataLoader" and not is_evaluation:
            if node.args and OF_EVALUATION.search(_last_word(node.args[0])):
                return node
            self._num_loaders += 1
            if self._guide.divides_batch:
                _divide_batch(node, f"{self._guide.variable}.world_size")
            return ast.parse(self._guide.loader(ast.unparse(node)), mode="eval").body
        return node

    def _block(self, block: Block) -> Block:
        """Set models and optimizers up after they are built, and let one rank write."""
        after: dict[int, str] = {}
        built = [i for i, one in enumerate(block) if isinstance(one, ast.Assign) and self._builds_optimizers(one.value)]
        for index in built:
            self._num_setups += 1
            loaders = self._joined_loaders(block, index) if self._guide.joins_loaders and index == built[-1] else {}
            last, text = self._setup(block, index, loaders)
            after[last] = f"{after[last]}\n{text}" if last in after else text
        return list(self._guarded(block, after))

    def _builds_optimizers(self, value: ast.expr) -> bool:
        return self._names.is_optimizer(value.elt if isinstance(value, ast.ListComp) else value)

    def _joined_loaders(self, block: Block, index_of_optimizer: int) -> dict[int, str]:
        """Take a block's loaders back from where they are built: they are prepared with all that is built there."""
        loaders = {}
        for index, one in enumerate(block):
            if isinstance(one, ast.For | ast.While) and index > index_of_optimizer:
                break
            if isinstance(one, ast.Assign) and ast.unparse(one.value).startswith(self._guide.loader("").strip(")")):
                loaders[index] = ast.unparse(one.targets[0])
                one.value = cast(ast.Call, one.value).args[0]
        return loaders

    def _setup(self, block: Block, index: int, loaders: dict[int, str]) -> tuple[int, str]:
        """Return after which statement the optimizer that a statement builds is set up, and how."""
        statement = cast(ast.Assign, block[index])
        target, value = ast.unparse(statement.targets[0]), statement.value
        if isinstance(value, ast.ListComp):
            return max([index, *loaders]), self._guide.setup_list(
                _names_of(value.generators[0].iter), target, [*loaders.values()]
            )
        schedulers = {
            place: ast.unparse(one.targets[0])
            for place, one in enumerate(block)
            if isinstance(one, ast.Assign) and self._names.is_scheduler(one.value) and _first(one.value) == target
        }
        models = _models([value, *_assigned_before(block[:index], value)])
        others = [*loaders.values(), *schedulers.values()]
        return max([index, *schedulers, *loaders]), self._guide.setup(models, target, others)

    def _guarded(self, block: Block, after: dict[int, str]) -> Iterator[ast.stmt]:
        """Yield a block with its insertions, consecutive writes under one condition."""
        written: Block = []
        for index, statement in enumerate(block):
            if _writes(statement):
                written.append(statement)
                continue
            yield from self._by_one_rank(written)
            written = []
            yield statement
            yield from ast.parse(after.get(index, "")).body
        yield from self._by_one_rank(written)

    def _by_one_rank(self, written: Block) -> Block:
        if not written:
            return []
        test = ast.parse(self._guide.is_main, mode="eval").body
        # in a branch that ranks may take or not, or as often as files are found, waiting for each other could hang
        is_awaited = not self._num_branches and any(_calls(one) not in REMOVES for one in written)
        barrier = ast.parse(self._guide.barrier).body if is_awaited else []
        return [ast.If(test, written, []), *barrier]


def _writes(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.With):
        return any(re.fullmatch(r"open\(.*'w'.*\)", ast.unparse(item.context_expr)) for item in statement.items)
    return _calls(statement) in (*WRITES, *REMOVES)


def _calls(statement: ast.stmt) -> str:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return ast.unparse(call.func) if isinstance(call, ast.Call) else ""


def _divide_batch(loader: ast.Call, num_ranks: str) -> None:
    """Divide the batch size of a loader, wherever it stands."""
    for keyword in loader.keywords:
        if keyword.arg == "batch_size" and ast.unparse(keyword.value) != "None":
            keyword.value = _divided(ast.unparse(keyword.value), num_ranks)
        if keyword.arg is None:
            options = ast.unparse(keyword.value)
            text = f"{{**{options}, 'batch_size': {options}['batch_size'] // {num_ranks}}}"
            keyword.value = ast.parse(text, mode="eval").body
    if len(loader.args) > 1:
        loader.args[1] = _divided(ast.unparse(loader.args[1]), num_ranks)


def _divided(size: str, num_ranks: str) -> ast.expr:
    return ast.parse(f"{size} // {num_ranks}", mode="eval").body


def _assigned_before(block: Block, call: ast.AST) -> list[ast.expr]:
    """Return the values of the names that a call uses, as groups of parameters are named."""
    used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    return [
        one.value
        for one in block
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) in used and ".parameters()" in ast.unparse(one)
    ]


def _models(values: Sequence[ast.AST]) -> list[str]:
    """Return whose parameters() an optimizer gets, each once, in order."""
    owners = [
        node.func.value
        for value in values
        for node in ast.walk(value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "parameters"
    ]
    if not owners or not all(isinstance(owner, ast.Name | ast.Attribute) for owner in owners):
        raise NeedsMore("an optimizer's parameters are not those of models that have a name")
    return list(dict.fromkeys(ast.unparse(owner) for owner in owners))


def _names_of(node: ast.expr) -> list[str]:
    if not isinstance(node, ast.Tuple | ast.List):
        raise NeedsMore("the models of a list of optimizers have no names")
    return [ast.unparse(one) for one in node.elts]


def _first(call: ast.expr) -> str:
    return ast.unparse(call.args[0]) if isinstance(call, ast.Call) and call.args else ""


def _last_word(node: ast.expr) -> str:
    return ast.unparse(node).split(".")[-1] if isinstance(node, ast.Name | ast.Attribute) else ""
