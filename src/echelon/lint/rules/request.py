"""Rules about the options of a batch script, and whether Slurm can read them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from echelon import units
from echelon.environment import digits
from echelon.errors import UsageError
from echelon.lint.batch import BatchOption, names, read
from echelon.lint.finding import Edit, Hit, Rule, hit, judged
from echelon.lint.job import JobScript
from echelon.lint.pages import words

PLACEHOLDER = re.compile(
    r"\b__[A-Z][A-Z0-9_]*__\b|<[A-Za-z][^<>]*>|\[(?:[Yy]our|YOUR|my|the)\b[^\]]*\]|\{\{.*?\}\}|\b(?:YOUR|your)[_-]\w+"
    r"|[Pp]roject_(?:X+|x+|0{3,}|N+)\b|\b(?:XXX+|xxx+|CHANGEME|FIXME|TODO)\b"
)
SURE = 0.9
"""The least likeness of difflib for a certain repair: gpu-per-node and gpus-per-node have 0.96."""
EXPANDED = re.compile(r"(?<!\\)(?:\$(?:[A-Za-z_]\w*|\{[^}]*\}|\([^)]*\))|`[^`]*`)")
"""Match the text that a shell expands."""
FILES, LABELS = ("output", "error", "input"), ("job-name", "comment", "mail-user", "wckey")
PERSONAL = re.compile(r"(?<![\w$}./])/(?:home|users|u)/[A-Za-z]\w+")


def unknown_option(job: JobScript) -> Iterator[Hit]:
    """Find an option that Slurm does not have, or with one dash too few."""
    known = names()
    for option in job.header.options:
        if option.name in known or PLACEHOLDER.search(option.name):
            continue
        bare = option.name.lstrip("-")
        if bare.partition("=")[0] in known and option.name.startswith("-"):
            dashes = "one dash" if option.written[1:2] != "-" else "too many dashes"
            repair = f"--{option.written.lstrip('-')}"
            yield hit(option, f"{option.written} has {dashes}; a long option has two", repair, becomes=repair)
            continue
        if not option.name.startswith("-") and option.written.startswith("--"):
            yield from _of_nobody(option, known)
        elif not PLACEHOLDER.search(option.written):
            yield hit(option, f"{option.written} is not an option, but this line holds only options")
    for start in job.started("srun"):
        for word in start.words:
            bare = word.text.lstrip("-").partition("=")[0]
            if re.match(r"-[A-Za-z][\w-]{2,}", word.raw) and bare in known and len(bare) > 2:
                message = f"{word.text} has one dash; a long option has two"
                yield hit(word, message, f"-{word.text}", becomes=f"-{word.raw}")


def _of_nobody(option: BatchOption, known: frozenset[str]) -> Iterator[Hit]:
    """Find an option that Slurm does not have: a site's option, an option of srun alone, or a slip."""
    table = words()["slurm"]
    if option.name in table["sites"]["options"]:
        return
    near = difflib.get_close_matches(option.name, known, n=1, cutoff=0.6)
    repair = option.written.replace(option.name, near[0], 1) if near else ""
    if option.name in table["steps"]["alone"]:
        yield hit(option, f"only srun has the option --{option.name}", f"srun {option.written} …")
        return
    is_sure = len(difflib.get_close_matches(option.name, known, n=2, cutoff=SURE)) == 1
    is_slip = is_sure or any(_is_slip(option.name, name) for name in known)
    if is_slip:
        yield hit(option, f"Slurm has no option --{option.name}", repair, becomes=repair if is_sure else "")
        return
    message = f"Slurm itself has no option --{option.name}: it works only where the site has added it"
    yield replace(hit(option, message, repair), severity="note")


def _is_slip(written: str, name: str) -> bool:
    """Say whether two names differ by one letter, or only by signs between words."""
    if written.replace("_", "-") == name or written.replace("-", "") == name.replace("-", ""):
        return True
    shorter, longer = sorted((written, name), key=len)
    if len(longer) - len(shorter) > 1 or len(shorter) < 3:
        return False
    at = next((i for i, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(shorter))
    return shorter[at + (len(shorter) == len(longer)) :] == longer[at + 1 :]


def not_read(job: JobScript) -> Iterator[Hit]:
    """Find options that come too late, or that look like a comment."""
    before = None
    is_habit = _comments_so(job)
    for late in (each for each in job.header.late if each.line not in job.document_lines):  # none of a job inside
        if before is not None and late.line == before.line + 1 and late.why == before.why:
            before = late
            continue  # one finding for a block of lines
        before = late
        line = job.lines[late.line - 1]
        start = len(line) - len(line.lstrip())
        begun = re.sub(r"^#\s*\w+", words()["slurm"]["directive"], late.text)
        repair = begun if "begin" in late.why else f"above the first command: {late.text}"
        if "begin" in late.why and is_habit:
            continue
        if job.is_batch or "begin" not in late.why:
            edits = () if "begin" in late.why else _moved_up(job, late.line)
            yield Hit(
                line=late.line, column=start + 1, width=len(late.text), message=f"this {late.why}", repair=repair,
                edits=edits, severity="warning" if "begin" in late.why else "",
            )  # fmt: skip


def _comments_so(job: JobScript) -> bool:
    """Say whether the author comments options out with `# SBATCH`: another line gives such an option."""
    names = {option.name for option in job.header.options}
    directive = words()["slurm"]["directive"]
    commented = [late.text for late in job.header.late if "begin" in late.why]
    lines = [re.sub(r"^#?\s*#?\w+", directive, text) for text in commented]
    return any(option.name in names for option in read(lines).options)


def _moved_up(job: JobScript, first: int) -> tuple[Edit, ...]:
    """Return the edits that move a block of late options up; none if they contradict options there."""
    numbers = {late.line for late in job.header.late if "begin" not in late.why}
    last = next(number for number in range(first, len(job.lines) + 2) if number not in numbers)
    block = job.lines[first - 1 : last - 1]
    names_there = {option.name for option in job.header.options}
    above = max((option.line for option in job.header.options), default=int(job.text.startswith("#!")))
    if not above or names_there & {option.name for option in read(block).options}:
        return ()
    moved = Edit(line=above + 1, column=1, old="", new="".join(f"{line}\n" for line in block))
    return (moved, *(Edit(line=first + i, column=1, old=f"{line}\n", new="") for i, line in enumerate(block)))


def unreadable_value(job: JobScript) -> Iterator[Hit]:
    """Find an invalid time, size or number."""
    for option in job.header.options:
        if not option.value or PLACEHOLDER.search(option.value) or EXPANDED.search(option.written):
            continue
        wrong = _unreadable(option)
        if wrong:
            repair, is_sure = _meant(option)
            message = f"--{option.name}={option.value}: {wrong}"
            yield hit(option, message, repair, becomes=repair if is_sure else "")


def _unreadable(option: BatchOption) -> str:
    if option.name in ("time", "time-min") and option.value.upper() not in ("UNLIMITED", "INFINITE"):
        try:
            units.minutes(option.value, option="--time")
        except UsageError as error:
            return error.message.partition(": ")[2] or error.message
        return "Slurm knows no units of time" if re.search("[smhd]$", option.value) else ""
    if option.name in ("mem", "mem-per-cpu", "mem-per-gpu"):
        return "" if re.fullmatch(r"\d+(\.\d+)?\s*([KMGT]B?)?", option.value, re.I) else "not a size: 60G, 500M"
    if option.name in ("cpus-per-task", "ntasks-per-node", "cpus-per-gpu", "ntasks"):
        return "" if digits.whole(option.value) else "not a whole number of at least 1"
    if option.name == "nodes":
        return "" if re.fullmatch(r"\d+(-\d+)?([,:]\d+)*", option.value) else "not a number of nodes"
    return ""


def _meant(option: BatchOption) -> tuple[str, bool]:
    """Return a valid option, and whether it has the intended value."""
    if option.name in ("time", "time-min"):
        try:
            return f"--{option.name}={units.slurm_time(units.minutes(option.value))}", True
        except UsageError:
            pass
    example = {"time": "1:00:00", "time-min": "1:00:00", "nodes": "1"}.get(option.name, "1")
    return f"--{option.name}={'60G' if option.name.startswith('mem') else example}", False


def placeholder(job: JobScript) -> Iterator[Hit]:
    """Find a placeholder that a person was to replace."""
    for option in job.header.options:
        match = PLACEHOLDER.search(option.written)
        is_filled = match is not None and match.group().startswith("__")  # by a tool that knows the name
        if match and not is_filled and option.name not in ("job-name", "comment"):
            placed = hit(option, f"{match.group()} is a placeholder: replace it", f"--{option.name}=…")
            yield judged(placed, is_certain=option.name not in LABELS)
    for command in job.script.commands:
        for word in command.argv if command.outer is None else ():
            text = re.sub(r"'[^']*'|\$\{\{?[^}]*\}\}?", "", word.raw)
            if match := re.search(r"\{\{.*?\}\}|project_(?:X+|x+|0{6,})\b|\bYOUR_\w+", text):
                yield hit(word, f"{match.group()} is a placeholder: replace it")
    for number, line in enumerate(job.lines, 1):
        is_text = line.lstrip().startswith("#") or number in job.document_lines or number in job.quoted_lines
        code = "" if is_text else re.sub(r"""'[^']*'|"[^"]*"|\s#.*""", lambda found: " " * len(found.group()), line)
        if job.is_batch and (match := re.search(r"(?<![<\w])<[a-z][a-z_ -]*>(?!\w)", code)):
            at, text = match.start() + 1, match.group()
            message = f"{text} is a placeholder: replace it; the shell reads it as redirections from and to files"
            yield Hit(line=number, column=at, width=len(text), message=message)


def unexpanded(job: JobScript) -> Iterator[Hit]:
    """Find a shell variable in an option: Slurm does not expand it."""
    for option in job.header.options:
        match = EXPANDED.search(option.written)
        if job.writer is not None or match is None or PLACEHOLDER.search(option.written):
            continue
        becomes = _with_patterns(option)
        repair = becomes or f"{words()['slurm']['submit']} {option.written} …   there the shell fills it in"
        message = f"Slurm reads {match.group()} as plain text, because no shell reads this line"
        yield judged(hit(option, message, repair, becomes=becomes), is_certain=option.name not in LABELS)


def _with_patterns(option: BatchOption) -> str:
    """Return the option with Slurm's file name patterns in place of variables; empty if a variable has none."""
    if option.name not in FILES:
        return ""
    signs = words()["slurm"]["patterns"]
    text = re.sub(r"\$\{?(\w+)\}?", lambda found: str(signs.get(found[1], found[0])), option.written)
    return "" if EXPANDED.search(text) else text


def no_first_line(job: JobScript) -> Iterator[Hit]:
    """Find a batch script without a first line that names its shell."""
    if job.is_batch and not job.text.startswith("#!"):
        first = job.lines[0] if job.lines else ""
        submit = words()["slurm"]["submit"]
        message = f"the first line is {first.strip()[:40]!r} instead of #!/bin/bash: {submit} refuses this script"
        edits = _first_line(job.lines)
        yield Hit(line=1, width=max(1, len(first)), message=message, repair="#!/bin/bash", edits=edits)


def _first_line(lines: list[str]) -> tuple[Edit, ...]:
    """Return the edit that inserts the first line: the one below empty lines, or bash's."""
    written = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines[written].startswith("#!"):
        return (Edit(line=1, column=1, old="".join(f"{line}\n" for line in lines[:written]), new=""),)
    return (Edit(line=1, column=1, old="", new="#!/bin/bash\n"),)


def no_account(job: JobScript) -> Iterator[Hit]:
    """Find a missing account on a machine that requires one."""
    if job.machine and job.machine.account == "required" and job.is_batch and not job.option("account"):
        message = f"the script names no account, but {job.machine.title} bills every job to an account"
        yield hit(job.option("partition") or job.header.options[0], message, "--account=project_…")


def personal_path(job: JobScript) -> Iterator[Hit]:
    """Find a path in one person's home."""
    for command in job.script.commands:
        for word in command.words:
            if match := PERSONAL.search(word.text):
                path = match.group()
                repair = word.text.replace(path, "$HOME", 1) if "\n" not in word.text else "$HOME"
                if not re.match(r"/(?:home|users|u)/me\b", path):
                    yield hit(word, f"{path} is the folder of one person: nobody else can run this script", repair)


def total_tasks(job: JobScript) -> Iterator[Hit]:
    """Find a total number of tasks, with which Slurm may fill one node and leave another nearly empty."""
    total, per_node = job.option("ntasks"), job.option("ntasks-per-node")
    if total is None or per_node is not None or job.num_nodes < 2 or not job.number(total.value):
        return
    count = job.number(total.value)
    if count > job.num_nodes and not job.devices_per_node * job.num_nodes == count == 0:
        quotient, rest = divmod(count, job.num_nodes)
        message = f"{count} tasks on {job.num_nodes} nodes: no option gives each node {quotient}"
        if rest:
            message = f"Slurm cannot give each of {job.num_nodes} nodes the same part of {count} tasks"
        repair = f"--ntasks-per-node={quotient or 1}"
        yield hit(total, message, repair, becomes="" if rest else repair)


RULES = (
    Rule(code="ECH117", find=no_account),
    Rule(code="ECH118", find=placeholder),
    Rule(code="ECH119", find=unknown_option),
    Rule(code="ECH120", find=not_read),
    Rule(code="ECH121", find=unreadable_value),
    Rule(code="ECH122", find=no_first_line),
    Rule(code="ECH123", find=total_tasks),
    Rule(code="ECH125", find=personal_path),
    Rule(code="ECH126", find=unexpanded),
)
