"""Rules about the cores and devices of tasks: masks, maps, and devices that are chosen twice."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from echelon.hardware import vendors
from echelon.lint.batch import BatchOption
from echelon.lint.command import Word
from echelon.lint.finding import Hit, Rule, hit
from echelon.lint.job import JobScript
from echelon.lint.pages import words
from echelon.lint.program import Program
from echelon.lint.starts import StartedProgram
from echelon.lint.visibility import OWN, VISIBLE, narrowing, seen_by
from echelon.script.branches import tail
from echelon.units import counted

BIND = re.compile(r"(mask_cpu|map_cpu)[:=]([0-9a-fA-Fx,]+)")


def _bindings(job: JobScript) -> Iterator[tuple[StartedProgram | None, Word, list[set[int]]]]:
    """Yield each list of masks or cores, with the cores of each task."""
    for command in job.commands:
        if command.outer is not None:
            continue
        for word in command.words:
            match = BIND.search(word.text)
            if match is None:
                continue
            try:
                numbers = [int(part, 16 if match[1] == "mask_cpu" else 10) for part in match[2].split(",") if part]
            except ValueError:
                continue
            step = next((start for start in job.starts if start.command is command and start.name == "srun"), None)
            bits = [{bit for bit in range(n.bit_length()) if n >> bit & 1} for n in numbers]
            yield step, word, bits if match[1] == "mask_cpu" else [{number} for number in numbers]


def masks(job: JobScript) -> Iterator[Hit]:
    """Find two tasks on the same cores."""
    for _, word, cores in _bindings(job):
        counts = Counter(frozenset(each) for each in cores)
        for position, mask in enumerate(cores):
            if counts[frozenset(mask)] > 1:
                again = next(i for i in range(position + 1, len(cores)) if cores[i] == mask)
                shown = _shown(mask)
                message = f"tasks {position} and {again} of each node get the same cores, {shown}"
                yield _repaired(job, word, cores, message)
                break
        else:
            both = next((pair for pair in _pairs(cores) if cores[pair[0]] & cores[pair[1]]), None)
            if both:
                shown = _shown(cores[both[0]] & cores[both[1]])
                message = f"tasks {both[0]} and {both[1]} of each node share the cores {shown}"
                yield _repaired(job, word, cores, message)


def reserved(job: JobScript) -> Iterator[Hit]:
    """Find a core that jobs never get."""
    kept = set(job.kind.reserved_cores) if job.kind else set()
    for _, word, cores in _bindings(job):
        wrong = sorted(kept & set().union(*cores)) if cores else []
        if wrong:
            message = f"core {', '.join(map(str, wrong[:4]))} is reserved: Slurm refuses the step"
            yield _repaired(job, word, cores, message)


def number_of_masks(job: JobScript) -> Iterator[Hit]:
    """Find a number of masks that differs from the tasks on a node."""
    for step, word, cores in _bindings(job):
        tasks = job.step_tasks_per_node(step) if step else 0
        if tasks and len(cores) != tasks and (len(cores) < tasks or tasks > 1):
            message = f"{counted(len(cores), 'mask')}, but {counted(tasks, 'task')} on each node"
            yield hit(word, message, _right(job) or "--cpu-bind=cores")


def part_of_node(job: JobScript) -> Iterator[Hit]:
    """Find a binding by number on part of a node: the numbers are the node's, and the cores may be others'."""
    for _, word, _cores in _bindings(job):
        if job.is_batch and not job.has_whole_nodes and job.kind is not None and job.kind.reserved_cores:
            message = "the option names cores by number, but the job does not have the whole node"
            yield hit(word, message, "--exclusive")
            return


def wrong_order(job: JobScript) -> Iterator[Hit]:
    """Find cores that are not the nearest to each task's device."""
    nearest = {row.device: set(row.cores) for row in job.kind.nearest} if job.kind else {}
    for _, word, cores in _bindings(job):
        if not nearest or len(cores) != len(nearest) or len({frozenset(each) for each in cores}) != len(cores):
            continue
        far = [i for i, each in enumerate(cores) if not each & nearest.get(i, each)]
        chooses = "gpu-bind" in job.text or "map_gpu" in job.text
        if far and not chooses and set().union(*cores).isdisjoint(job.kind.reserved_cores if job.kind else ()):
            first = far[0]
            wanted = f"nearest to device {first} are {_shown(nearest[first])}"
            message = f"task {first} gets cores {_shown(cores[first])}, but {wanted}"
            yield _repaired(job, word, cores, message)


def _repaired(job: JobScript, word: Word, cores: list[set[int]], message: str) -> Hit:
    """Return a hit with the right masks for this machine, with one task for each device of a node."""
    right = _right(job)
    is_sure = right and job.kind is not None and len(cores) == len(job.kind.nearest)
    becomes = BIND.sub(right.removeprefix("--cpu-bind="), word.raw, count=1) if is_sure else ""
    return hit(word, message, right, becomes=becomes)


def _right(job: JobScript) -> str:
    rows = sorted(job.kind.nearest, key=lambda row: row.device) if job.kind else ()
    text = ",".join(f"{sum(1 << core for core in row.cores):#x}" for row in rows)
    return f"--cpu-bind=mask_cpu:{text}" if text else ""


def _pairs(cores: list[set[int]]) -> Iterator[tuple[int, int]]:
    return ((i, j) for j in range(len(cores)) for i in range(j))


def _shown(cores: set[int]) -> str:
    ordered = sorted(cores)
    is_range = len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1
    return f"{ordered[0]}-{ordered[-1]}" if is_range else ",".join(map(str, ordered))


def devices_of_a_task(job: JobScript) -> Iterator[Hit]:
    """Find --gpus-per-task, which puts each task's device into a cgroup that hides all others."""
    if "allow-task-sharing" in job.text or (job.kind and not vendors.named(job.kind.vendor).cgroup_cuts_links):
        return
    for name in ("gpus-per-task", "ntasks-per-gpu"):
        option = job.option(name)
        if option and job.kind is not None and job.tasks_per_node > 1:
            message = (
                f"{option.written}: each of {job.tasks_per_node} tasks sees only its own device, and cannot use "
                "links to other devices"
            )
            yield hit(option, message, f"--gpus-per-node={job.devices_per_node or 'N'}")


def chosen_twice(job: JobScript) -> Iterator[Hit]:
    """Find a visible device that the script selects once more among the visible devices."""
    for start in job.starts:
        program = next((each for each in job.programs if start.script is None or job.runs(start, each)), None)
        if program is None or seen_by(start, job) != OWN or "device_count" in program.words:
            continue
        calls = program.called("set_device", "to", "device", "cuda")
        call = next((each for each in calls if _is_by_local_rank(program, each)), None)
        place = _narrowing(job, start)
        if call is not None and place is not None:
            where = f"{program.path}, line {call.lineno},"
            name = place.name if isinstance(place, BatchOption) else place.text.partition("=")[0].lstrip("-")
            message = f"{name} leaves each task one device, number 0, but {where} uses the task's own number"
            repair = f"--gpus-per-node={job.devices_per_node or 'N'}, or in {program.path}: torch.cuda.set_device(0)"
            yield hit(place, message, repair)
            return


def _narrowing(job: JobScript, start: StartedProgram) -> Word | BatchOption | None:
    """Return what leaves each of several ranks a single device; None if a node has one rank."""
    variable = narrowing(job)
    if variable is not None:
        return variable.word
    names = ("gpus-per-task", "ntasks-per-gpu", "gpu-bind")
    options = [start.step.option(name) for name in names] if start.step else []
    word = next((each[0] for each in options if each), None)
    place = word or next(filter(None, map(job.option, names)), None)
    return place if start.step is not None and job.step_tasks_per_node(start) > 1 else None


def _is_by_local_rank(program: Program, call: ast.Call) -> bool:
    chosen = " ".join(ast.unparse(argument) for argument in call.args[:2])
    names = {tail(each) for each in ast.walk(call) if isinstance(each, (ast.Name, ast.Attribute))}
    is_local = bool(names & program.local_ranks) or re.search(r"local_?rank|LOCALID", chosen, re.I) is not None
    is_read = bool({"LOCAL_RANK", f"{words()['slurm']['variable']}LOCALID"} & program.texts)
    return is_local and is_read and "%" not in chosen


def both_visible(job: JobScript) -> Iterator[Hit]:
    """Find the filters of two layers together: the second counts among the devices that the first leaves."""
    for lower, upper in ([layer[0] for layer in vendor.filters] for vendor in vendors.LISTED if vendor.filters[1:]):
        first, second = job.last(lower), job.last(upper)
        if first and second:
            message = f"{upper}={second.value} numbers the devices that {lower}={first.value} has left"
            yield hit(second.word, message, f"unset {upper}")


def visible_count(job: JobScript) -> Iterator[Hit]:
    """Find a number of visible devices that differs from the request."""
    for name in VISIBLE:
        variable = job.last(name)
        if variable is None or not job.devices_per_node or not re.fullmatch(r"\d+(,\d+)*", variable.value):
            continue
        count = len(variable.value.split(","))
        if count != job.devices_per_node and not (
            variable.command.argv and variable.command.program not in ("export", "srun")
        ):
            message = f"{counted(count, 'visible device')}, but the job has {job.devices_per_node} on each node"
            yield hit(variable.word, message, f"remove it: Slurm sets {name}")


RULES = (
    Rule(code="ECH124", find=devices_of_a_task),
    Rule(code="ECH220", find=chosen_twice),
    Rule(code="ECH225", find=masks),
    Rule(code="ECH226", find=reserved),
    Rule(code="ECH227", find=number_of_masks),
    Rule(code="ECH228", find=part_of_node),
    Rule(code="ECH229", find=wrong_order),
    Rule(code="ECH412", find=both_visible),
    Rule(code="ECH413", find=visible_count),
)
