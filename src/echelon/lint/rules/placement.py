"""Rules about the device that a rank takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from echelon.lint.finding import Hit, Rule, judged
from echelon.lint.program import Program, constant, keyword
from echelon.lint.visibility import ALL, OWN
from echelon.script.branches import tail

STATE = re.compile(r"ckpt|checkpoint|snapshot|model|state|weight|resume|optim|best|last|pretrain|load_state_dict", re.I)
"""Match names of what is saved from devices."""
FIRST = re.compile(r"(?:cuda|hip):0")


def _uses_nccl(call: ast.Call) -> bool:
    backend = keyword(call, "backend") or (call.args[0] if call.args else None)
    value = constant(backend)
    return backend is None or (isinstance(value, str) and "nccl" in value)


def no_device(program: Program) -> Iterator[Hit]:
    """Find init_process_group("nccl") without a device for each rank."""
    if (
        program.is_served
        or program.is_stepped
        or program.sees == OWN
        or {"set_device", "device_id"}
        & (program.words | {each.arg or "" for _, c in program.calls for each in c.keywords})
    ):
        return
    if any("VISIBLE_DEVICES" in text for text in program.texts):
        return
    bare = _first_bare(program)
    if bare is None and "DistributedDataParallel" not in program.words:
        return  # another file has the code that uses devices
    for call in program.called("init_process_group"):
        backend = keyword(call, "backend") or (call.args[0] if call.args else None)
        is_open = isinstance(backend, (ast.Name, ast.Attribute)) and bare is not None and not _chooses(program)
        is_given = call.args or call.keywords or "cuda" in program.text
        if is_given and (_uses_nccl(call) or is_open):
            message = (
                "the script chooses no device: calls that name no device, such as barrier, use device 0 in every rank"
            )
            if bare is not None:
                message = (
                    f"the script chooses no device: {ast.unparse(bare)} in line {bare.lineno} is device 0 in every rank"
                )
            yield program.hit(call, message, 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))')
            return


def _chooses(program: Program) -> bool:
    """Say whether the script selects a device by number anywhere."""
    texts = (ast.unparse(node) for node in program.nodes if isinstance(node, ast.JoinedStr))
    return any("cuda:" in text for text in texts) or any(len(call.args) > 1 for call in program.called("device"))


def _first_bare(program: Program) -> ast.expr | None:
    """Return the first use of the current device: .cuda(), .to("cuda"), device = "cuda"."""
    for node in program.nodes:
        if isinstance(node, ast.Call) and tail(node.func) == "cuda" and not node.args and not node.keywords:
            return node
        if isinstance(node, ast.Constant) and node.value == "cuda":
            parent = program.parents.get(node)
            is_used = isinstance(parent, ast.Call) and tail(parent.func) in ("to", "device")
            if is_used or isinstance(parent, (ast.Assign, ast.IfExp)):
                return parent if isinstance(parent, ast.expr) else node
    return None


def _zero(call: ast.Call) -> ast.expr | None:
    """Return the constant 0 with which a call takes the first device."""
    word, args = tail(call.func), call.args
    if word in ("set_device", "cuda") and args and constant(args[0]) == 0 and constant(args[0]) is not False:
        return args[0]
    if word == "device" and len(args) > 1 and constant(args[0]) in ("cuda", "hip") and constant(args[1]) == 0:
        return args[1]
    ids = keyword(call, "device_ids")
    if isinstance(ids, ast.List) and len(ids.elts) == 1 and constant(ids.elts[0]) == 0:
        return ids.elts[0]
    return None


def first_device(program: Program) -> Iterator[Hit]:
    """Find "cuda:0" in a script for several ranks."""
    if not program.is_distributed or program.sees == OWN:
        return
    is_certain = program.sees == ALL
    for node in program.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FIRST.fullmatch(node.value):
            parent = program.parents.get(node)
            is_mapping = (isinstance(parent, ast.keyword) and parent.arg == "map_location") or isinstance(
                parent, (ast.Dict, ast.Compare)
            )
            if not is_mapping and not program.is_guarded(node) and "VISIBLE_DEVICES" not in " ".join(program.texts):
                message = f"{node.value!r} is the same device for every rank of a node"
                yield judged(program.hit(node, message, 'f"cuda:{local_rank}"'), is_certain=is_certain)
    for call in program.called("set_device", "cuda", "device", "DistributedDataParallel"):
        zero = _zero(call)
        if zero is not None and not program.is_guarded(call) and "VISIBLE_DEVICES" not in " ".join(program.texts):
            repair = program.source(call).replace("0", 'int(os.environ["LOCAL_RANK"])')
            message = "device 0 is the same device for every rank of a node"
            yield judged(program.hit(call, message, repair), is_certain=is_certain)


def global_as_local(program: Program) -> Iterator[Hit]:
    """Find the global rank used as the number of a device."""
    if not program.is_distributed or "spawn" in program.words or (program.num_nodes == 1 and program.sees != OWN):
        return
    ranks = _names_of_rank(program)
    for call in program.called("set_device", "device", "DistributedDataParallel", "cuda", "to"):
        chosen: ast.expr | None = call.args[0] if call.args else None
        if tail(call.func) == "DistributedDataParallel" or program.name(call.func).endswith("DistributedDataParallel"):
            ids = keyword(call, "device_ids")
            chosen = ids.elts[0] if isinstance(ids, ast.List) and ids.elts else None
        named = chosen.id if isinstance(chosen, ast.Name) else ""
        if isinstance(chosen, ast.JoinedStr) and (match := re.search(r"cuda:\{(\w+)\}", ast.unparse(chosen))):
            named = match[1]
        if named and named in ranks:
            message = f"{named} is the number among all ranks: the second node has no such device"
            mistake = program.hit(call, message, 'int(os.environ["LOCAL_RANK"])')
            yield judged(mistake, is_certain=program.num_nodes > 1 and program.sees == ALL)
            return


def _names_of_rank(program: Program) -> set[str]:
    names: set[str] = set()
    others: set[str] = set()
    for node in program.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, text = node.targets[0].id, ast.unparse(node.value)
            is_rank = re.search(r"get_rank\(\)|environ\[['\"]RANK['\"]\]|(?:getenv|environ\.get)\(['\"]RANK['\"]", text)
            (names if is_rank and "%" not in text and "LOCAL" not in text else others).add(name)
        elif isinstance(node, ast.arg):
            others.add(node.arg)
    return names - others


def data_parallel(program: Program) -> Iterator[Hit]:
    for name, call in program.calls:
        if name in ("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"):
            message = "DataParallel: one process drives all devices of one node, and copies the model in every step"
            yield program.hit(
                call, message, "DistributedDataParallel(model, device_ids=[local_rank]), started by torchrun"
            )


def loads_to_first(program: Program) -> Iterator[Hit]:
    """Find torch.load without map_location, with which every rank loads onto the device that saved."""
    if not program.is_distributed or "FullyShardedDataParallel" in program.words:
        return
    for name, call in program.calls:
        is_bare = name == "torch.load" and keyword(call, "map_location") is None and len(call.args) < 2
        if (
            is_bare
            and _is_of_device(program, call)
            and not any(each.arg is None for each in call.keywords)
            and not program.is_guarded(call)
        ):
            message = "without map_location every rank loads onto the device that saved, number 0"
            yield program.hit(call, message, f'{ast.unparse(call)[:-1]}, map_location="cpu")')


def _is_of_device(program: Program, call: ast.Call) -> bool:
    """Say whether a file was probably saved from a device: a model's state, not data."""
    if not re.search(r"cuda|nccl|hip|xpu|device", program.text):
        return False
    if any(
        isinstance(each, ast.ClassDef) and "Dataset" in ast.unparse(each).partition(":")[0]
        for each in program.around(call)
    ):
        return False
    statement = next((each for each in program.around(call) if isinstance(each, ast.stmt)), None)
    text = ast.unparse(statement) if statement is not None else ""
    target = ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
    loads = " ".join(ast.unparse(each) for each in program.called("load_state_dict"))
    is_loaded = bool(target) and re.search(rf"\b{re.escape(target)}\b", loads) is not None
    return is_loaded or STATE.search(text) is not None


def argument(program: Program) -> Iterator[Hit]:
    """Find --local_rank as an argument, which torchrun does not pass."""
    if "LOCAL_RANK" in program.texts or {"deepspeed"} & program.uses or not program.is_distributed:
        return
    for call in program.called("add_argument"):
        first = constant(call.args[0]) if call.args else None
        if first in ("--local_rank", "--local-rank"):
            message = f"torchrun does not pass {first}: every rank gets the default; LOCAL_RANK is in the environment"
            yield program.hit(call, message, 'local_rank = int(os.environ["LOCAL_RANK"])')


RULES = (
    Rule(code="ECH514", find=no_device),
    Rule(code="ECH515", find=first_device),
    Rule(code="ECH516", find=global_as_local),
    Rule(code="ECH517", find=data_parallel),
    Rule(code="ECH518", find=loads_to_first),
    Rule(code="ECH519", find=argument),
)
