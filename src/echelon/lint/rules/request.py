"""What a batch script asks for, and whether Slurm can read it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from echelon import units
from echelon.errors import UsageError
from echelon.lint.batch import Option, names
from echelon.lint.finding import Hit, Rule
from echelon.lint.job import Job, hit
from echelon.lint.toml import words

PLACEHOLDER = re.compile(
    r"<[A-Za-z][\w .-]*>|\{\{.*?\}\}|\b(?:YOUR|your)[_-]\w+"
    r"|[Pp]roject_(?:X+|x+|0{3,}|N+)\b|\b(?:XXX+|xxx+|CHANGEME|FIXME|TODO)\b"
)
PERSONAL = re.compile(r"(?<![\w$}./])/(?:home|users|u)/[A-Za-z]\w+")


def unknown_option(job: Job) -> Iterator[Hit]:
    """An option that Slurm does not have, or that has one dash too few."""
    known = names()
    for option in job.header.options:
        if option.name in known:
            continue
        bare = option.name.lstrip("-")
        if bare.partition("=")[0] in known and option.name.startswith("-"):
            yield hit(option, f"{option.written} has one dash, a long option has two", f"-{option.written}")
            continue
        if not option.name.startswith("-") and option.written.startswith("--"):
            near = difflib.get_close_matches(option.name, known, n=1, cutoff=0.6)
            repair = option.written.replace(option.name, near[0], 1) if near else ""
            yield hit(option, f"Slurm has no option --{option.name}", repair)
        elif not PLACEHOLDER.search(option.written):
            yield hit(option, f"{option.written} is no option, and options alone stand on this line")
    for start in job.started("srun"):
        for word in start.words:
            bare = word.text.lstrip("-").partition("=")[0]
            if re.match(r"-[A-Za-z][\w-]{2,}", word.raw) and bare in known and len(bare) > 2:
                yield hit(word, f"{word.text} has one dash, a long option has two", f"-{word.text}")


def not_read(job: Job) -> Iterator[Hit]:
    """Options that come too late, or look like a comment."""
    before = None
    for late in job.header.late:
        if before is not None and late.line == before.line + 1 and late.why == before.why:
            before = late
            continue  # one finding for a block of lines
        before = late
        line = job.lines[late.line - 1]
        start = len(line) - len(line.lstrip())
        repair = re.sub(r"^#\s+", "#", late.text) if "begin" in late.why else f"above the first command: {late.text}"
        if job.is_batch or "begin" not in late.why:
            yield Hit(line=late.line, column=start + 1, width=len(late.text), message=f"this {late.why}", repair=repair)


def unreadable_value(job: Job) -> Iterator[Hit]:
    """A time, a size or a number that is none."""
    for option in job.header.options:
        if not option.value or PLACEHOLDER.search(option.value) or "$" in option.value:
            continue
        wrong = _unreadable(option)
        if wrong:
            yield hit(option, f"--{option.name}={option.value}: {wrong}", _example(option))


def _unreadable(option: Option) -> str:
    if option.name in ("time", "time-min") and option.value.upper() not in ("UNLIMITED", "INFINITE"):
        try:
            units.minutes(option.value, option="--time")
        except UsageError as error:
            return error.message.partition(": ")[2] or error.message
        return "Slurm knows no units of time" if re.search("[smhd]$", option.value) else ""
    if option.name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        return "" if re.fullmatch(r"\d+(\.\d+)?\s*([KMGT]B?)?", option.value, re.I) else "not a size: 60G, 500M"
    if option.name in ("cpus-per-task", "ntasks-per-node", "cpus-per-gpu", "ntasks"):
        return "" if option.value.isdigit() and int(option.value) else "not a whole number of at least 1"
    if option.name == "nodes":
        return "" if re.fullmatch(r"\d+(-\d+)?([,:]\d+)*", option.value) else "not a number of nodes"
    return ""


def _example(option: Option) -> str:
    example = {"time": "1:00:00", "time-min": "1:00:00", "nodes": "1"}.get(option.name, "1")
    return f"--{option.name}={'60G' if option.name.startswith('mem') else example}"


def placeholder(job: Job) -> Iterator[Hit]:
    """Something that a person was to fill in."""
    for option in job.header.options:
        if found := PLACEHOLDER.search(option.written):
            yield hit(option, f"{found.group()} has not been filled in", f"--{option.name}=…")
    for command in job.commands:
        for word in command.argv if command.outer is None else ():
            text = re.sub(r"'[^']*'|\$\{\{?[^}]*\}\}?", "", word.raw)
            if found := re.search(r"\{\{.*?\}\}|project_(?:X+|x+|0{6,})\b|\bYOUR_\w+", text):
                yield hit(word, f"{found.group()} has not been filled in")
    for number, line in enumerate(job.lines, 1):
        code = "" if line.lstrip().startswith("#") else line
        if job.is_batch and (found := re.search(r"(?<![<\w])<[a-z][a-z_ -]*>(?!\w)", code)):
            at, text = found.start() + 1, found.group()
            message = f"{text} has not been filled in; the shell reads it as redirections from and to files"
            yield Hit(line=number, column=at, width=len(text), message=message)


def no_first_line(job: Job) -> Iterator[Hit]:
    """A batch script that does not say which shell it is for."""
    if job.is_batch and not job.text.startswith("#!"):
        first = job.lines[0] if job.lines else ""
        submit = words()["slurm"]["submit"]
        message = f"the first line is {first.strip()[:40]!r} and not #!/bin/bash: {submit} takes no such script"
        yield Hit(line=1, width=max(1, len(first)), message=message, repair="#!/bin/bash")


def no_account(job: Job) -> Iterator[Hit]:
    """No account where the machine wants one."""
    if (
        job.machine
        and job.machine.account == "required"
        and "partition" in job.header.last
        and not job.option("account")
    ):
        message = f"no account is named, and {job.machine.title} bills every job to one"
        yield hit(job.header.last["partition"], message, "--account=project_…")


def personal_path(job: Job) -> Iterator[Hit]:
    """A path of one person's home."""
    for command in job.commands:
        for word in command.words:
            if found := PERSONAL.search(word.text):
                path = found.group()
                repair = word.text.replace(path, "$HOME", 1) if "\n" not in word.text else "$HOME"
                if not re.match(r"/(?:home|users|u)/me\b", path):
                    yield hit(word, f"{path} is one person's folder: nobody else can run this", repair)


def total_tasks(job: Job) -> Iterator[Hit]:
    """The number of tasks in all, with which Slurm may fill one node and leave another with few."""
    total, per_node = job.option("ntasks"), job.option("ntasks-per-node")
    if total is None or per_node is not None or job.num_nodes < 2 or not job.number(total.value):
        return
    count = job.number(total.value)
    if count > job.num_nodes and not job.devices_per_node * job.num_nodes == count == 0:
        each, rest = divmod(count, job.num_nodes)
        message = f"{count} tasks on {job.num_nodes} nodes: nothing says that each node gets {each}"
        if rest:
            message = f"{count} tasks cannot be the same number on each of {job.num_nodes} nodes"
        yield hit(total, message, f"--ntasks-per-node={each or 1}")


RULES = (
    Rule(code="ECH117", find=no_account),
    Rule(code="ECH118", find=placeholder),
    Rule(code="ECH119", find=unknown_option),
    Rule(code="ECH120", find=not_read),
    Rule(code="ECH121", find=unreadable_value),
    Rule(code="ECH122", find=no_first_line),
    Rule(code="ECH123", find=total_tasks),
    Rule(code="ECH125", find=personal_path),
)
