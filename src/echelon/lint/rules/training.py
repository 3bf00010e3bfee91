"""Rules about the training loop, checkpoints, and missing names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from echelon.lint.finding import Edit, Hit, Rule, judged
from echelon.lint.program import FUNCTIONS, Program, constant
from echelon.script.branches import LOOPS, bound, tail

OPTIMIZER = re.compile(r"opt(?:im|imizer|imiser)?(?:_\w+)?$|\w*optim(?:izer)?s?$", re.IGNORECASE)
DECLARATIONS = (ast.Global, ast.Nonlocal)
TORCH_NAMES = {
    "CPUOffload": "torch.distributed.fsdp", "MixedPrecision": "torch.distributed.fsdp",
    "ShardingStrategy": "torch.distributed.fsdp", "FullyShardedDataParallel": "torch.distributed.fsdp",
    "fully_shard": "torch.distributed.fsdp", "wrap": "torch.distributed.fsdp.wrap",
    "enable_wrap": "torch.distributed.fsdp.wrap", "DistributedDataParallel": "torch.nn.parallel",
    "DistributedSampler": "torch.utils.data", "DataLoader": "torch.utils.data",
    "init_process_group": "torch.distributed",
}  # fmt: skip
RATE = re.compile(r"per_sec|per_second|throughput|img_?s\b|images?_sec|samples_sec|tokens_sec", re.IGNORECASE)


def no_zero_grad(program: Program) -> Iterator[Hit]:
    """Find gradients that are never cleared."""
    if (
        "zero_grad" in program.words
        or program.is_served
        or program.is_stepped
        or "grad" in _assigned_attributes(program)
    ):
        return
    for loop in (node for node in program.nodes if isinstance(node, LOOPS) or _is_called_in_a_loop(program, node)):
        inside = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
        backward = next((call for call in inside if tail(call.func) == "backward"), None)
        step = next((call for call in inside if tail(call.func) == "step" and OPTIMIZER.match(_owner(call))), None)
        if backward and step and not step.args:
            repair = f"{ast.unparse(step.func).rpartition('.')[0]}.zero_grad()"
            statement = program.parents.get(step)
            edits = program.line_after(statement, repair) if isinstance(statement, ast.Expr) else ()
            message = "the script never calls zero_grad: each step adds the gradients of all earlier steps"
            mistake = program.hit(backward, message, repair, edits)
            yield judged(mistake, is_certain=not _is_of_other_class(program, _owner(step)))
            return


def _is_of_other_class(program: Program, name: str) -> bool:
    """Say whether an optimizer is made by a class of another file, which may clear gradients itself."""
    assigned = (node for node in program.nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call))
    makers = [program.name(node.value.func) for node in assigned if name in map(tail, node.targets)]  # type: ignore[attr-defined]
    return any(not maker.startswith(("torch.", "optim.")) for maker in makers)


def _is_called_in_a_loop(program: Program, node: ast.AST) -> bool:
    """Say whether a loop calls this function, so that it may be a single step."""
    if not isinstance(node, FUNCTIONS):
        return False
    return any(isinstance(each, LOOPS) for place in program.callers(node) for each in program.around(place))


def _assigned_attributes(program: Program) -> set[str]:
    return {
        t.attr
        for node in program.nodes
        if isinstance(node, ast.Assign)
        for t in node.targets
        if isinstance(t, ast.Attribute)
    }


def _owner(call: ast.Call) -> str:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return tail(owner) if owner is not None else ""


def resumes_one_early(program: Program) -> Iterator[Hit]:
    """Find a resume that repeats the saved epoch."""
    saved = _saved_epochs(program)
    for node in program.nodes:
        if not isinstance(node, ast.Assign):
            continue
        value = node.value
        if isinstance(value, ast.Call) and tail(value.func) == "int" and value.args:
            value = value.args[0]
        key = constant(value.slice) if isinstance(value, ast.Subscript) else None
        target = ast.unparse(node.targets[0])
        if not isinstance(key, str) or key not in saved:
            continue
        begins = re.search(rf"range\(\s*{re.escape(target)}\s*,", program.text)
        if begins:
            message = (
                f"epoch {key!r} was saved after it had ended (line {saved[key]}), but {target} begins with it again"
            )
            yield program.hit(node, message, f"{target} = {ast.unparse(value)} + 1")


def _saved_epochs(program: Program) -> dict[str, int]:
    """Return the keys under which the variable of a loop is saved, each with its line."""
    loops = {
        node.target.id
        for node in program.nodes
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and "range" in ast.unparse(node.iter)
    }
    lines: dict[str, int] = {}
    for key, value in _pairs(program):
        text = constant(key)
        is_epoch = isinstance(value, ast.Name) and "epoch" in value.id.lower() and value.id in loops
        if isinstance(text, str) and "epoch" in text.lower() and is_epoch and "save" in program.words:
            lines[text] = value.lineno
    return lines


def _pairs(program: Program) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """Yield every key with its value, from dict displays and item assignments."""
    for node in program.nodes:
        if isinstance(node, ast.Dict):
            yield from zip(node.keys, node.values, strict=True)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            yield node.targets[0].slice, node.value


def not_imported(program: Program) -> Iterator[Hit]:
    """Find a name of torch that is called and never imported."""
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in program.nodes):
        return
    names = _bound(program)
    for _, call in program.calls:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if name in TORCH_NAMES and name not in names:
            repair = f"from {TORCH_NAMES[name]} import {name}"
            yield program.hit(call, f"{name} is called but never imported", repair, _imported(program, repair))
        elif name == "Dict" and program.aliases.get("Dict", "typing.Dict") == "typing.Dict":
            message = "typing.Dict cannot be called: use Python's dict"
            yield program.hit(call, message, "dict(…)", program.edit(call.func, "dict"))


def never_set(program: Program) -> Iterator[Hit]:
    """Find a counter that a function adds to, and never sets: to Python it is a local name without a value."""
    for function in (node for node in program.nodes if isinstance(node, FUNCTIONS)):
        counts = bound(function.body)
        added = [
            node
            for node in _own_nodes(function)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
        ]
        declared = {name for node in _own_nodes(function) if isinstance(node, DECLARATIONS) for name in node.names}
        arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        for name in dict.fromkeys(tail(node.target) for node in added):
            here = [node for node in added if tail(node.target) == name]
            if counts[name] == len(here) and name not in declared | arguments and not _is_caught(program, here[0]):
                message = f"{name} has no value here: {function.name} only adds to it, which makes it a local name"
                yield program.hit(here[0], message, f"{name} = 0   before the loop, or global {name}")


def _own_nodes(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions and classes inside of it."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))


def _is_caught(program: Program, node: ast.AST) -> bool:
    return any(isinstance(each, ast.Try) for each in program.around(node))


def _imported(program: Program, line: str) -> tuple[Edit, ...]:
    """Return the edit that inserts an import before the first one."""
    imports = (node for node in program.tree.body if isinstance(node, (ast.Import, ast.ImportFrom)))
    first = next((node for node in imports if getattr(node, "module", "") != "__future__"), None)
    return program.line_before(first, line) if first is not None else ()


def _bound(program: Program) -> set[str]:
    names: set[str] = set(program.aliases)
    for node in program.nodes:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def not_waited_for(program: Program) -> Iterator[Hit]:
    """Find a rate from a clock that is read before the device has finished."""
    if "synchronize" in program.words or not {"cuda", "Event"} & program.words or "Event" in program.words:
        return
    if "backward" not in program.words:
        return
    for node in program.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Div):
            names = " ".join(tail(target) for target in node.targets if isinstance(target, (ast.Name, ast.Attribute)))
            if not RATE.search(names) or ".item()" in ast.unparse(program.function(node) or program.tree):
                continue  # .item() waits for the device
            if re.search(r"time|elapsed|dur|dt|end|start", ast.unparse(node.value.right)):
                message = "the script reads the clock while the device still works, because its calls return at once"
                yield program.hit(node, message, "torch.cuda.synchronize()   before each reading of the clock")


RULES = (
    Rule(code="ECH520", find=no_zero_grad),
    Rule(code="ECH521", find=resumes_one_early),
    Rule(code="ECH522", find=not_imported),
    Rule(code="ECH522", find=never_set),
    Rule(code="ECH523", find=not_waited_for),
)
