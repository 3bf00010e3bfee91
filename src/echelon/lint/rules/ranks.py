"""Rules about work that one rank should do and every rank does, and the other way round."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from echelon.environment import digits
from echelon.lint.finding import Edit, Hit, Rule, judged
from echelon.lint.program import DEEPEST, FUNCTIONS, Program, constant, keyword
from echelon.script.branches import LOOPS, tail

COLLECTIVES = frozenset(
    {
        "barrier", "all_reduce", "all_gather", "all_gather_object", "all_gather_into_tensor", "broadcast",
        "broadcast_object_list", "reduce", "gather", "gather_object", "scatter", "reduce_scatter", "all_to_all",
        "reduce_scatter_tensor", "wait_for_everyone",
    }
)  # fmt: skip
OF_ONE = re.compile(
    r"rank\w*(?:\(\))?\s*(?:==|!=|>|<)\s*\d|not \w*\.?\w*rank|rank0"
    r"|is_main|is_master|is_global_zero|\bmaster\b|is_primary"
)


def _is_collective(program: Program, call: ast.Call) -> bool:
    name = program.name(call.func)
    word = tail(call.func)
    if word not in COLLECTIVES:
        return False
    return name.startswith(("torch.distributed.", "dist.")) or word in ("wait_for_everyone",)


def collective_on_some(program: Program) -> Iterator[Hit]:
    """Find a collective below `if rank == 0`."""
    for _, call in program.calls:
        if not _is_collective(program, call) or any(each.arg == "group" for each in call.keywords):
            continue
        guard = program.guard(call)
        if guard is None or not is_of_one(program, guard.test) or _pairs(program, guard, call):
            continue
        who = f"the ranks of `{ast.unparse(guard.test)}` (line {guard.lineno})"
        message = f"only {who} run this line, but {tail(call.func)} waits for all ranks"
        repair = f"move it out of the if of line {guard.lineno}"
        yield program.hit(call, message, repair, _moved_out(program, guard, call))


def _moved_out(program: Program, guard: ast.If | ast.IfExp, call: ast.Call) -> tuple[Edit, ...]:
    """Return the edit that moves a barrier out of an `if`, if it is the last statement."""
    statement = program.parents.get(call)
    if not isinstance(guard, ast.If) or guard.orelse or len(guard.body) < 2 or guard.body[-1] is not statement:
        return ()
    line, above = program.lines[call.lineno - 1], program.lines[guard.lineno - 1]
    is_alone = line.strip() == ast.unparse(call) and above[guard.col_offset :].startswith("if")
    if not is_alone or tail(call.func) not in ("barrier", "wait_for_everyone"):
        return ()
    return (Edit(line=call.lineno, column=1, old=line, new=above[: guard.col_offset] + line.strip()),)


def is_of_one(program: Program, test: ast.expr) -> bool:
    """Say whether a test selects one rank, or all but one."""
    text = ast.unparse(test).lower()
    if any(isinstance(each, ast.Name) and each.id in program.flags for each in ast.walk(test)):
        return True
    return OF_ONE.search(text) is not None


def _pairs(program: Program, guard: ast.If | ast.IfExp, call: ast.Call) -> bool:
    """Say whether every rank reaches the collective: in both branches, or before and after the others' turn."""
    if isinstance(guard, ast.IfExp):
        return False
    name = tail(call.func)
    sides = [
        {tail(each.func) for stmt in side for each in ast.walk(stmt) if isinstance(each, ast.Call)}
        for side in (guard.body, guard.orelse)
    ]
    if guard.orelse and all(name in side for side in sides):
        return True
    function = program.function(guard) or program.tree
    return any(
        name in names and not other.lineno <= call.lineno <= (other.end_lineno or 0)
        for other, names in program.ifs_by_rank(function)
    )


def exit_on_some(program: Program) -> Iterator[Hit]:
    """Find an exit of one rank for which the others wait."""
    if not program.is_distributed:
        return
    for name, call in program.calls:
        if name not in ("sys.exit", "exit", "quit", "os._exit"):
            continue
        guard = program.guard(call)
        after = [each for each in program.called(*COLLECTIVES, "backward") if each.lineno > call.lineno]
        if (
            guard is not None
            and is_of_one(program, guard.test)
            and after
            and any(call is inner for inner in ast.walk(guard))
        ):
            who = f"the ranks of `{ast.unparse(guard.test)}`"
            message = f"only {who} end here, but the others wait for them in {tail(after[0].func)}"
            mistake = program.hit(call, message, "broadcast the decision first, then raise the error in every rank")
            fails = bool(call.args) and constant(call.args[0]) not in (0, None)  # then a launcher may end the others
            yield judged(mistake, is_certain=not fails)


def saves_everywhere(program: Program) -> Iterator[Hit]:
    """Find torch.save in every rank, to one file."""
    if not program.is_distributed:
        return
    for name, call in program.calls:
        if name != "torch.save" or program.is_guarded(call):
            continue
        path = ast.unparse(call.args[1]) if len(call.args) > 1 else ast.unparse(keyword(call, "f") or call)
        if "rank" not in path.lower():
            message = f"every rank writes {path}: the ranks overwrite each other's data"
            yield program.hit(call, message, f"if torch.distributed.get_rank() == 0:\n    {ast.unparse(call)}")


def downloads_everywhere(program: Program) -> Iterator[Hit]:
    """Find download=True in every rank."""
    if not program.is_distributed:
        return
    for _, call in program.calls:
        value = keyword(call, "download")
        if constant(value) is True and not program.is_guarded(call) and value is not None:
            message = "every rank downloads into the same folder at once"
            yield program.hit(call, message, "download once before the job, and download=False here")


def node_instead_of_job(program: Program) -> Iterator[Hit]:
    """Find `local_rank == 0`, which selects one rank of every node."""
    for _, call in program.calls:
        if not _writes_file(program, call):
            continue
        guard = _guard_of_callers(program, call)
        if guard is None or not isinstance(guard, ast.If) or not guard.body or call is guard.test:
            continue
        text = ast.unparse(guard.test)
        if _is_first_of_node(program, guard.test):
            message = f"`{text}` (line {guard.lineno}) is true once on every node, so each node writes the same file"
            yield program.hit(call, message, "if torch.distributed.get_rank() == 0:")


def _guard_of_callers(program: Program, call: ast.AST) -> ast.If | ast.IfExp | None:
    """Return the `if` by rank around a node, or around the only call of its function."""
    for _ in range(DEEPEST):
        guard = program.guard(call)
        function = program.function(call)
        places = program.callers(function) if guard is None and function is not None else []
        if guard is not None or len(places) != 1:
            return guard
        call = places[0]
    return None


def _is_first_of_node(program: Program, test: ast.expr) -> bool:
    names = {tail(each) for each in ast.walk(test) if isinstance(each, (ast.Name, ast.Attribute))}
    is_first = any(
        isinstance(each, ast.Compare) and tail(each.left) in program.local_ranks and constant(each.comparators[0]) == 0
        for each in ast.walk(test)
    )
    others = names - program.local_ranks
    return is_first and not any("rank" in name.lower() or "main" in name or "master" in name for name in others)


def _writes_file(program: Program, call: ast.Call) -> bool:
    name = program.name(call.func)
    text = ast.unparse(call)
    return (name == "torch.save" or tail(call.func) in ("save_pretrained", "to_csv", "savez")) and not re.search(
        r"/tmp|tempfile|TMPDIR|node_rank", text
    )


def prints_everywhere(program: Program) -> Iterator[Hit]:
    """Find a line that every rank prints in every step."""
    if not program.is_distributed:
        return
    for name, call in program.calls:
        if name != "print" or program.is_guarded(call) or re.search("rank|gpu", ast.unparse(call).lower()):
            continue
        loops = [each for each in program.around(call) if isinstance(each, LOOPS)]
        function = program.function(call)
        trains = any(
            tail(inner.func) == "backward" for each in loops for inner in ast.walk(each) if isinstance(inner, ast.Call)
        )
        if trains and isinstance(function or program.tree, (*FUNCTIONS, ast.Module)):
            yield program.hit(call, "every rank prints this line", "if torch.distributed.get_rank() == 0:")
            return


def fixed_port(program: Program) -> Iterator[Hit]:
    """Find a port in the script, which is equal in every job."""
    for node in program.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
            key, value = constant(target.slice), constant(node.value)
            if (
                key == "MASTER_PORT"
                and tail(target.value) == "environ"
                and digits.whole(str(value))
                and not _is_fallback(program, node)
            ):
                message = f"port {value} is the same in every run: two runs on one node conflict"
                owner, name, port = (program.source(each) for each in (target.value, target.slice, node.value))
                becomes = f"{owner}.setdefault({name}, {port})"
                is_alone = len(node.targets) == 1 and isinstance(value, str)
                edits = program.edit(node, becomes) if is_alone else ()
                yield program.hit(node, message, "let the launcher set MASTER_PORT", edits)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = re.fullmatch(r"tcp://(?:localhost|127\.0\.0\.1|0\.0\.0\.0):(\d+)", node.value)
            if match and "init_process_group" in program.words and match[1] != "0":
                yield program.hit(
                    node, f"port {match[1]} is the same in every run: two runs on one node conflict", '"env://"'
                )


def _is_fallback(program: Program, node: ast.AST) -> bool:
    """Say whether the port is set only if the launcher has set none."""
    return any(isinstance(each, ast.If) and "MASTER_PORT" in ast.unparse(each.test) for each in program.around(node))


RULES = (
    Rule(code="ECH507", find=collective_on_some),
    Rule(code="ECH508", find=exit_on_some),
    Rule(code="ECH509", find=saves_everywhere),
    Rule(code="ECH510", find=downloads_everywhere),
    Rule(code="ECH511", find=node_instead_of_job),
    Rule(code="ECH512", find=prints_everywhere),
    Rule(code="ECH513", find=fixed_port),
)
