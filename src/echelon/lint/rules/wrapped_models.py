"""Mistakes with wrapped models (DDP, FSDP): a single rank calls, loads, saves or leaves the model alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from echelon.lint.finding import Hit, Rule
from echelon.lint.program import FUNCTIONS, Program, keyword
from echelon.lint.rules.ranks import COLLECTIVES, is_of_one
from echelon.script.branches import LOOPS, tail

RECORDERS = frozenset({"wandb.init", "mlflow.start_run", "neptune.init_run", "comet_ml.Experiment"})
OPTIMIZER = re.compile(r"optim|^opt$", re.IGNORECASE)


def _wrapped(program: Program) -> dict[str, int]:
    """Return the names of models that DistributedDataParallel wraps, each with its line."""
    lines: dict[str, int] = {}
    for node in program.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            name = program.name(node.value.func).rpartition(".")[2]
            if name in ("DistributedDataParallel", "DDP"):
                lines |= {ast.unparse(target): node.lineno for target in node.targets}
    return lines


def recorded_everywhere(program: Program) -> Iterator[Hit]:
    """Find wandb.init in every rank."""
    if not program.is_distributed or any("WANDB_MODE" in text for text in program.texts):
        return
    for name, call in program.calls:
        keywords = {each.arg for each in call.keywords}
        is_shared = "group" in keywords or (keyword(call, "mode") is not None and program.speaks_of_rank(call))
        if name in RECORDERS and not is_shared and not program.is_guarded(call):
            message = f"every rank calls {name}, so each rank records its own run, with only its own curves"
            yield program.hit(call, message, f"if torch.distributed.get_rank() == 0:\n    {ast.unparse(call)}")
            return


def loaded_on_one(program: Program) -> Iterator[Hit]:
    """Find load_state_dict on one rank, after DDP has made all ranks equal."""
    models = _wrapped(program)
    if not program.is_distributed or not models or {"broadcast", "_sync_params_and_buffers"} & program.words:
        return
    for call in program.called("load_state_dict"):
        owner = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        name = owner.removesuffix(".module")
        guard = program.guard(call)
        if guard is None or not is_of_one(program, guard.test):
            continue
        is_model = name in models and call.lineno > models[name]
        if is_model or OPTIMIZER.search(tail(call.func.value) if isinstance(call.func, ast.Attribute) else ""):
            where = f"the ranks of `{ast.unparse(guard.test)}` (line {guard.lineno})"
            message = f"only {where} load {owner}: the other ranks keep different values, and nothing makes them equal"
            yield program.hit(call, message, f"load in every rank, with map_location, outside line {guard.lineno}")
            return


def leaves_loop(program: Program) -> Iterator[Hit]:
    """Find one rank that leaves the loop in which all train."""
    if not program.is_distributed:
        return
    for node in program.nodes:
        if not isinstance(node, (ast.Break, ast.Return)):
            continue
        loop = _loop(program, node)
        guard = program.guard(node)
        if loop is None or guard is None or not loop.lineno < guard.lineno <= node.lineno:
            continue
        is_inside = node.lineno <= (guard.end_lineno or 0) and isinstance(guard, ast.If)
        if is_inside and is_of_one(program, guard.test) and _trains_together(loop):
            word = "break" if isinstance(node, ast.Break) else "return"
            message = f"only the ranks of `{ast.unparse(guard.test)}` leave the loop; the others wait in backward"
            repair = f"broadcast the decision to all ranks, then {word} in each of them"
            yield program.hit(node, message, repair)


def _loop(program: Program, node: ast.AST) -> ast.For | ast.While | None:
    """Return the loop that a statement leaves: the nearest for break, the outermost of the function for return."""
    loop = None
    for parent in program.around(node):
        if isinstance(parent, FUNCTIONS):
            break
        if isinstance(parent, (ast.For, ast.While)):
            loop = parent
            if isinstance(node, ast.Break):
                break
    return loop


def _trains_together(loop: ast.AST) -> bool:
    names = {tail(each.func) for each in ast.walk(loop) if isinstance(each, ast.Call)}
    return "backward" in names or bool(names & COLLECTIVES - {"gather", "reduce", "scatter"})


def past_the_wrapper(program: Program) -> Iterator[Hit]:
    """Find model.module(x) in training, which bypasses the averaging of gradients."""
    models = _wrapped(program)
    bare = {f"{model}.module" for model in models}
    bare |= {
        ast.unparse(target)
        for node in program.nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in bare
        for target in node.targets
    }
    for _, call in program.calls if models else ():
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr == "forward":
            func = func.value
        is_module = ast.unparse(func) in bare
        if not is_module or _is_without_gradients(program, call):
            continue
        loop = next((each for each in program.around(call) if isinstance(each, LOOPS)), None)
        scope = loop or program.function(call) or program.tree
        after = [each for each in ast.walk(scope) if isinstance(each, ast.Call) and tail(each.func) == "backward"]
        if any(each.lineno >= call.lineno for each in after):
            name = ast.unparse(call.func)
            message = (
                f"{name}(…) bypasses DistributedDataParallel, which averages gradients only for calls of the wrapper"
            )
            yield program.hit(call, message, f"{next(iter(models))}(…)")
            return


def _is_without_gradients(program: Program, call: ast.AST) -> bool:
    for parent in program.around(call):
        marks = [item.context_expr for item in parent.items] if isinstance(parent, (ast.With, ast.AsyncWith)) else []
        marks += parent.decorator_list if isinstance(parent, FUNCTIONS) else []
        if any(re.search(r"no_grad|inference_mode|no_sync", ast.unparse(mark)) for mark in marks):
            return True
    return False


REPEATED = (*LOOPS, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda)


def one_unit(program: Program) -> Iterator[Hit]:
    """Find fully_shard() of a whole model whose layers are no units of their own."""
    calls = list(program.called("fully_shard"))
    if len(calls) != 1 or not calls[0].args or {"FSDPModule", "apply"} & program.words:
        return
    (call,) = calls
    layers = _layers(program, call.args[0])
    function = program.function(call)
    is_given = function is not None and tail(call.args[0]) in {each.arg for each in function.args.args}
    if not layers or is_given or any(isinstance(each, REPEATED) for each in program.around(call)):
        return
    model = ast.unparse(call.args[0])
    message = f"{model} is one unit of FSDP: each forward and each backward gathers all its weights at once"
    yield program.hit(
        call, message, f"for layer in {model}.{layers}:\n    fully_shard(layer)   before fully_shard({model})"
    )


def _layers(program: Program, model: ast.expr) -> str:
    """Return the attribute in which a model of this file keeps a list of layers; empty where none is seen."""
    made = [
        node.value
        for node in program.nodes
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == ast.unparse(model) for target in node.targets)
    ]
    names = {tail(each.func) for value in made for each in ast.walk(value) if isinstance(each, ast.Call)}
    for kind in (node for node in program.nodes if isinstance(node, ast.ClassDef) and node.name in names):
        for node in ast.walk(kind):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            target = node.targets[0]
            if tail(node.value.func) in ("ModuleList", "Sequential") and isinstance(target, ast.Attribute):
                return target.attr
    return ""


def saves_its_shard(program: Program) -> Iterator[Hit]:
    """Find one rank that saves the state of a model that fully_shard() has cut."""
    states = {
        f"{ast.unparse(call.args[0])}.state_dict()": call.args[0] for call in program.called("fully_shard") if call.args
    }
    for node in program.nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in states:
            states |= {ast.unparse(target): states[ast.unparse(node.value)] for target in node.targets}
    for call in program.called("save"):
        guard = program.guard(call)
        if guard is None or not is_of_one(program, guard.test) or program.name(call.func) != "torch.save":
            continue
        within = {ast.unparse(each) for word in call.args[:1] for each in ast.walk(word)}
        for model in (ast.unparse(states[text]) for text in within & states.keys()):
            message = f"{model} is sharded, and only this rank saves: the file has this rank's part of each weight"
            options = "StateDictOptions(full_state_dict=True, cpu_offload=True)"
            repair = f"in each rank: state = get_model_state_dict({model}, options={options})"
            yield program.hit(call, message, repair)
            return


RULES = (
    Rule(code="ECH524", find=recorded_everywhere),
    Rule(code="ECH525", find=loaded_on_one),
    Rule(code="ECH526", find=leaves_loop),
    Rule(code="ECH527", find=past_the_wrapper),
    Rule(code="ECH528", find=one_unit),
    Rule(code="ECH529", find=saves_its_shard),
)
