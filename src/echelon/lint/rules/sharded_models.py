"""Mistakes of scripts that shard a model with FSDP."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from echelon.lint.finding import Hit, Rule
from echelon.lint.program import Program
from echelon.lint.rules.ranks import is_of_one
from echelon.script.branches import LOOPS, tail

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
    Rule(code="ECH528", find=one_unit),
    Rule(code="ECH529", find=saves_its_shard),
)
