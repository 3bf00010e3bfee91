"""Rules that need both the job and the training script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from echelon.lint.command import Word
from echelon.lint.finding import Hit, Rule, hit, line_before
from echelon.lint.job import JobScript
from echelon.lint.pages import words
from echelon.lint.program import Program, constant, keyword
from echelon.lint.rules.steps import ranks_per_node
from echelon.lint.starts import StartedProgram
from echelon.units import counted

BF16 = re.compile(
    r"--bf16(?!=?\s*(?:false|0))\b|mixed[_-]precision[= ]bf16|precision[= ](?:bf16\S*)|dtype[= ]bfloat16", re.IGNORECASE
)


def _place(job: JobScript) -> Word | None:
    start: StartedProgram | None = next(iter(job.starts), None)
    return start.word if start else None


def bf16(job: JobScript) -> Iterator[Hit]:
    """Find bf16 on a chip without it."""
    chip = job.chip[0]
    if chip not in words()["chips"]["without_bf16"]:
        return
    for start in job.starts:
        match = BF16.search(" ".join(word.text for word in start.words))
        if match:
            yield hit(
                start.word,
                f"this line asks for {match.group()}, but {chip} has no bf16 hardware",
                "--fp16   or --mixed_precision=fp16",
            )
            return
    place = _place(job)
    for program in job.programs:
        line = _line_of_bf16(program)
        if line and place is not None:
            yield hit(
                place,
                f"{program.path}, line {line}, computes in bf16, but {chip} has no bf16 hardware",
                "torch.float16 with a GradScaler",
            )


def _line_of_bf16(program: Program) -> int:
    for node in program.nodes:
        is_type = isinstance(node, ast.Attribute) and node.attr == "bfloat16"
        is_text = (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value in ("bf16", "bf16-mixed", "bf16-true")
        )
        if (is_type or is_text) and "is_bf16_supported" not in program.words:
            return int(getattr(node, "lineno", 0))
    return 0


def fork(job: JobScript) -> Iterator[Hit]:
    """Find forked data loader workers beside a network that does not survive a fork."""
    needed = next((row for row in job.machine.settings if row.name == "CXI_FORK_SAFE"), None) if job.machine else None
    place = _place(job)
    if needed is None or place is None or job.num_nodes < 2 or any(job.started("echelon")):
        return
    if any(variable.name == needed.name for variable in job.variables):
        return
    for program in job.programs:
        for call in program.called("DataLoader"):
            count, method = keyword(call, "num_workers"), keyword(call, "multiprocessing_context")
            if count is None or constant(count) == 0 or method is not None or "set_start_method" in program.words:
                continue
            forked = (
                f"{program.path}, line {call.lineno}: loaders fork their workers (num_workers={ast.unparse(count)})"
            )
            message = f"{forked}, but {needed.name} is not set: {needed.why}"
            repair = f"export {needed.name}={needed.value} CXI_FORK_SAFE_HP=1 FI_CXI_DISABLE_CQ_HUGETLB=1"
            yield hit(place, message, repair, edits=line_before(job.lines, job.starts[0].command, repair))
            return


def workers_of_script(job: JobScript) -> Iterator[Hit]:
    """Find a script whose num_workers, times the ranks of a node, exceeds the cores."""
    ranks, cores, place = ranks_per_node(job), job.cores_per_node, _place(job)
    if not ranks or not cores or place is None:
        return
    for program in job.programs:
        for call in program.called("DataLoader"):
            count = constant(keyword(call, "num_workers"))
            if isinstance(count, int) and ranks * count > cores:
                product = f"{counted(ranks, 'rank')} × {counted(count, 'worker')} = {ranks * count}"
                message = (
                    f"{program.path}, line {call.lineno}: {product}, but the job has {counted(cores, 'core')} there"
                )
                yield hit(place, message, f"num_workers={max(1, cores // ranks - 1)}")
                break


def batch(job: JobScript) -> Iterator[Hit]:
    """Find a global batch that the ranks cannot divide equally."""
    ranks, place = job.devices_per_node * job.num_nodes, _place(job)
    if ranks < 2 or place is None:
        return
    for program in job.programs:
        for node in program.nodes:
            if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.FloorDiv):
                continue
            divisor = ast.unparse(node.right).lower()
            size = _size(program, node.left)
            if "world_size" in divisor and size and size % ranks:
                shared = f"{ranks} ranks cannot share {counted(size, 'sample')} equally"
                message = f"{program.path}, line {node.lineno}: {shared}; {size % ranks} are dropped"
                yield hit(place, message, f"a batch of {max(ranks, size // ranks * ranks)}")


def _size(program: Program, node: ast.expr) -> int:
    value = constant(node)
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = ast.unparse(node)
        values = [
            each.value
            for each in program.nodes
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == name
        ]
        value = constant(values[0]) if len(values) == 1 else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


RULES = (
    Rule(code="ECH415", find=bf16),
    Rule(code="ECH416", find=fork),
    Rule(code="ECH419", find=workers_of_script),
    Rule(code="ECH420", find=batch),
)
