"""Rules about the samples of each rank, and about results that are computed on a part of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from echelon.lint.finding import Edit, Hit, Rule, judged
from echelon.lint.program import FUNCTIONS, Program, constant, keyword
from echelon.script.branches import LOOPS, tail

SHARING = re.compile(
    r"sampler|iterabledataset|shard|split_by_node|split_dataset|world_size|get_rank|streamingdataset|webdataset|num_replicas"
)
REDUCING = {
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "all_gather_object",
    "gather_object",
    "all_gather_into_tensor",
    "torchmetrics",
    "gather_for_metrics",
    "barrier_and_reduce",
}
CUT = re.compile(r"\[\s*(?:\w*\.)?(?:\w*rank\w*)\s*::|\brank\s*\*|%\s*(?:\w*\.)?world_size|manual_seed\([^)\n]*rank")
METRIC = re.compile(
    r"acc|correct|f1|recall|precision|val_loss|test_loss|eval_loss|bleu|perplexity|ppl\b", re.IGNORECASE
)
SAME_END = frozenset({"Join", "join", "islice", "cycle", "repeat", "with_epoch", "steps_per_epoch", "max_steps"})
"""Words of scripts in which all ranks end a loop together, or may."""


def no_set_epoch(program: Program) -> Iterator[Hit]:
    """Find a DistributedSampler without set_epoch."""
    if "set_epoch" in program.words or program.is_served:
        return
    for call in program.called("DistributedSampler"):
        if constant(keyword(call, "shuffle")) is not False and _is_of_training(program, call):
            name = _target(program, call) or _of_loader(program, call)
            message = "the script never calls set_epoch, so every epoch has the order of the first epoch"
            repair = f"for epoch in range(epochs):\n    {name}.set_epoch(epoch)"
            yield program.hit(call, message, repair, _told(program, call, name))
            return


def _told(program: Program, call: ast.Call, name: str) -> tuple[Edit, ...]:
    """Return the edit that adds set_epoch, if there is a single loop over epochs and the sampler is visible in it."""
    statement = next((each for each in program.around(call) if isinstance(each, ast.stmt)), None)
    loops = [
        node
        for node in program.nodes
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and "epoch" in node.target.id.lower()
    ]
    if len(loops) != 1 or not isinstance(statement, ast.Assign) or name == "sampler" != _target(program, call):
        return ()
    (loop,) = loops
    scope = program.function(call) or program.tree
    is_plain = program.parents.get(statement) is scope and isinstance(_outermost(program, call), ast.Call)
    is_seen = (program.function(loop) or program.tree) is scope and loop.lineno > statement.lineno
    if not is_plain or not is_seen or ast.unparse(loop.iter).partition("(")[0] != "range":
        return ()
    return program.line_before(loop.body[0], f"{name}.set_epoch({ast.unparse(loop.target)})")


def _outermost(program: Program, call: ast.Call) -> ast.AST:
    """Return the assigned value that contains a sampler: the sampler, or the loader around it."""
    statement = next(each for each in program.around(call) if isinstance(each, ast.stmt))
    value: ast.AST = getattr(statement, "value", call)
    is_loader = isinstance(value, ast.Call) and any(each.value is call for each in value.keywords)
    return value if value is call or is_loader else statement


def _is_of_training(program: Program, call: ast.Call) -> bool:
    text = f"{_target(program, call)} {ast.unparse(call)}".lower()
    if re.search(r"val|test|eval", text) and "train" not in text:
        return False
    return "for" in program.text and not program.path.endswith("conftest.py")


def _target(program: Program, call: ast.AST) -> str:
    parent = program.parents.get(call)
    return ast.unparse(parent.targets[0]) if isinstance(parent, ast.Assign) else ""


def _of_loader(program: Program, call: ast.AST) -> str:
    """Return the expression for a sampler that is created inside of DataLoader(…)."""
    loader = next((each for each in program.around(call) if isinstance(each, ast.Call)), None)
    name = _target(program, loader) if loader is not None else ""
    return f"{name}.sampler" if name else "sampler"


def shuffle_and_sampler(program: Program) -> Iterator[Hit]:
    """Find DataLoader(shuffle=True, sampler=…)."""
    open_names = _may_be_none(program)
    for call in program.called("DataLoader"):
        sampler = keyword(call, "sampler") or keyword(call, "batch_sampler")
        is_real = isinstance(sampler, (ast.Call, ast.Name, ast.Attribute)) and ast.unparse(sampler) not in open_names
        if constant(keyword(call, "shuffle")) is True and is_real:
            message = "DataLoader gets shuffle=True and a sampler, accepts only one of them, and raises ValueError"
            shuffle = keyword(call, "shuffle")
            edits = program.edit(shuffle, "False") if shuffle else ()
            mistake = program.hit(call, message, "shuffle=False", edits)
            yield judged(mistake, is_certain=sampler is not None and _is_sampler(program, sampler))


def _is_sampler(program: Program, node: ast.expr) -> bool:
    """Say whether an expression is a sampler for sure: a call of its class, or a name that only has such values."""
    if isinstance(node, ast.Call):
        return tail(node.func).endswith("Sampler")
    name = ast.unparse(node)
    values = [
        each.value
        for each in program.nodes
        if isinstance(each, ast.Assign) and name in [ast.unparse(target) for target in each.targets]
    ]
    return bool(values) and all(
        isinstance(value, ast.Call) and tail(value.func).endswith("Sampler") for value in values
    )


def _may_be_none(program: Program) -> set[str]:
    names = {node.arg for node in program.nodes if isinstance(node, ast.arg)}
    for node in program.nodes:
        if not isinstance(node, ast.Assign):
            continue
        if isinstance(node.value, ast.IfExp) or (isinstance(node.value, ast.Constant) and node.value.value is None):
            names |= {ast.unparse(target) for target in node.targets}
    return names


def same_samples(program: Program) -> Iterator[Hit]:
    """Find a loader with which every rank reads all samples, in its own order."""
    if not program.is_distributed or "DistributedDataParallel" not in program.words:
        return
    if _is_cut(program):
        return
    for call in program.called("DataLoader"):
        keywords = {each.arg for each in call.keywords}
        text = f"{ast.unparse(call)} {_origin(program, call)}".lower()
        if None in keywords or keywords & {"sampler", "batch_sampler"} or SHARING.search(text):
            continue
        is_plain = constant(keyword(call, "shuffle")) is not True
        if is_plain and (keyword(call, "shuffle") is not None or not _trains_with(program, call)):
            continue
        if not program.is_guarded(call):
            message = "no sampler distributes the samples: every rank reads all of them"
            repair = "DataLoader(data, sampler=DistributedSampler(data), …)   without shuffle=True"
            yield program.hit(call, message, repair)


def _origin(program: Program, call: ast.Call) -> str:
    """Return the code that creates the samples of a loader, if the script assigns them."""
    names = {each.id for argument in call.args[:1] for each in ast.walk(argument) if isinstance(each, ast.Name)}
    assigned = (node for node in program.nodes if isinstance(node, ast.Assign))
    return " ".join(ast.unparse(node) for node in assigned if names & {ast.unparse(each) for each in node.targets})


def _trains_with(program: Program, call: ast.Call) -> bool:
    """Say whether the script trains with a loader, and neither shuffles nor distributes its samples."""
    name, dataset = _target(program, call), ast.unparse(call.args[0]) if call.args else ""
    shares = SHARING.search(re.sub(r"world_size|get_rank", "", program.text.lower()))
    if shares or not name or not dataset or re.search("val|test|eval", name):
        return False
    for loop in (node for node in program.nodes if isinstance(node, ast.For)):
        is_over = re.search(rf"(?<![\w.]){re.escape(name)}\b", ast.unparse(loop.iter)) is not None
        if is_over and any(isinstance(each, ast.Call) and tail(each.func) == "backward" for each in ast.walk(loop)):
            return True
    return False


def _is_cut(program: Program) -> bool:
    """Say whether the script splits the data set itself by rank."""
    code = "\n".join(line for line in program.lines if not line.lstrip().startswith("#"))
    own = {"shard", "split_dataset_by_node", "IterableDataset"}
    return CUT.search(code) is not None or bool(own & program.words)


def unseeded_split(program: Program) -> Iterator[Hit]:
    """Find random_split before any seed, so that each rank splits differently."""
    if not program.is_distributed:
        return
    seeds = [
        call.lineno
        for call in program.called("manual_seed", "seed_everything", "set_seed", "manual_seed_all", "fork_rng")
        if not _is_of_generator(program, call)
    ]
    for call in program.called("random_split", "train_test_split"):
        seeded = keyword(call, "generator") or keyword(call, "random_state") or len(call.args) > 2
        if not seeded and not seeds and not program.is_guarded(call):
            name = tail(call.func)
            argument = "generator=torch.Generator().manual_seed(0)" if name == "random_split" else "random_state=0"
            message = (
                f"{name} has no seed: each rank draws other samples, so a sample can be for validation on one "
                "rank and for training on another"
            )
            yield program.hit(call, message, f"{name}(…, {argument})")


def _is_of_generator(program: Program, call: ast.Call) -> bool:
    """Say whether a call seeds a generator of its own, which does not affect random_split."""
    own = isinstance(call.func, ast.Attribute) and call.func.attr == "manual_seed"
    return own and not program.name(call.func).startswith("torch.")


def metric_of_a_part(program: Program) -> Iterator[Hit]:
    """Find a metric that a rank prints from its own samples only."""
    if not program.is_distributed or REDUCING & (program.words | program.uses):
        return
    if not ({"DistributedSampler"} & program.words):
        return
    for call in program.called("print", "info", "log", "add_scalar"):
        names = [inner.id for inner in ast.walk(call) if isinstance(inner, ast.Name) and METRIC.search(inner.id)]
        if not names and any(
            isinstance(each, ast.Constant) and METRIC.search(str(each.value)) for each in ast.walk(call)
        ):
            counters = _counters(program)
            names = [inner.id for inner in ast.walk(call) if isinstance(inner, ast.Name) and inner.id in counters]
        if names and program.guard(call) is not None:
            message = f"{names[0]} holds only one rank's samples; no all-reduce adds the other ranks'"
            yield program.hit(
                call, message, f"torch.distributed.all_reduce({names[0]})   before it is divided and shown"
            )
            return


def _is_whole(program: Program, loader: str, node: ast.AST) -> bool:
    calls = [call for call in program.called("DataLoader") if _target(program, call) == loader]
    has_sampler = any({"sampler", "batch_sampler", None} & {each.arg for each in call.keywords} for call in calls)
    return (bool(calls) and not has_sampler) or program.is_guarded(node)


def _counters(program: Program) -> set[str]:
    """Return the names to which loops add."""
    added = (node for node in program.nodes if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add))
    return {tail(node.target) for node in added if any(isinstance(each, LOOPS) for each in program.around(node))}


def length_of_all(program: Program) -> Iterator[Hit]:
    """Find a division by the number of all samples after counting on one rank."""
    if (
        not program.is_distributed
        or REDUCING & (program.words | program.uses)
        or "DistributedSampler" not in program.words
    ):
        return
    sampled = {ast.unparse(call.args[0]) for call in program.called("DistributedSampler") if call.args}
    counters = _counters(program)
    for node in program.nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
            continue
        text = ast.unparse(node.right)
        is_sampled = text in {f"len({each})" for each in sampled} and counters & {
            each.id for each in ast.walk(node.left) if isinstance(each, ast.Name)
        }
        of_loader = re.fullmatch(r"len\(([\w.]*(?:loader|dataloader)\w*)\.dataset\)", text)
        if is_sampled or (of_loader and not _is_whole(program, of_loader[1], node)):
            message = (
                f"{text} counts the samples of all ranks, but {ast.unparse(node.left)[:40]} counts the samples of "
                "one rank"
            )
            yield program.hit(node, message, "all_reduce the count first, or divide by len(loader.sampler)")


def uneven_stream(program: Program) -> Iterator[Hit]:
    """Find a training over a stream that each rank reads in part, without an end that all ranks share."""
    wrapped = {"DistributedDataParallel", "DDP", "fully_shard", "FullyShardedDataParallel"} & program.words
    used = {tail(node) for node in program.nodes if isinstance(node, (ast.Name, ast.Attribute))}
    if not program.is_distributed or not wrapped or SAME_END & used:
        return
    streams = {node.name for node in program.nodes if isinstance(node, ast.ClassDef) and _deals_out(program, node)}
    loaders = {
        ast.unparse(target)
        for node in program.nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and tail(node.value.func) == "DataLoader"
        if streams & {tail(each.func) for each in ast.walk(node.value) if isinstance(each, ast.Call)}
        for target in node.targets
    }
    for loop in (node for node in program.nodes if isinstance(node, ast.For)):
        read = {ast.unparse(each) for each in ast.walk(loop.iter)}
        inside = [each for statement in loop.body for each in ast.walk(statement)]
        calls = {tail(each.func) for each in inside if isinstance(each, ast.Call)}
        if loaders & read and "backward" in calls and not any(isinstance(each, ast.Break) for each in inside):
            name = min(loaders & read)
            message = (
                f"each rank reads its own part of {name}: a rank with more batches waits in backward for the others"
            )
            is_ddp = bool(wrapped & {"DistributedDataParallel", "DDP"})
            shared = "with torch.distributed.algorithms.join.Join([model]):   around the loop"
            yield program.hit(
                loop.iter, message, shared if is_ddp else "end the loop in the step in which a rank has no batch"
            )
            return


def _deals_out(program: Program, kind: ast.ClassDef) -> bool:
    """Say whether a class is a stream whose __iter__ depends on the rank."""
    if "IterableDataset" not in {tail(base) for base in kind.bases}:
        return False
    return any(
        isinstance(node, FUNCTIONS) and node.name == "__iter__" and program.speaks_of_rank(node) for node in kind.body
    )


RULES = (
    Rule(code="ECH501", find=no_set_epoch),
    Rule(code="ECH502", find=shuffle_and_sampler),
    Rule(code="ECH503", find=same_samples),
    Rule(code="ECH504", find=unseeded_split),
    Rule(code="ECH505", find=metric_of_a_part),
    Rule(code="ECH506", find=length_of_all),
    Rule(code="ECH530", find=uneven_stream),
)
