"""Mistakes in the shell's own grammar, most of which the shell does not notice before the job runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from echelon.lint.finding import Hit, Rule
from echelon.lint.job import Job, hit
from echelon.lint.shell import ASSIGNMENT
from echelon.lint.toml import words

CAPITALS = re.compile(r"\$\(([A-Z_][A-Z0-9_]{2,})\)")
TYPOGRAPHIC = {"“": '"', "”": '"', "‘": "'", "–": "--", "—": "--", "\u00a0": " ", "−": "-"}
LISTENING = re.compile(r"(?:--(?:ip|host|bind|listen|server[.]address)[= ]?|\s)(?:0\.0\.0\.0|\*|::)(?=[\s:'\"]|$)")
SERVERS = (
    "nc",
    "ncat",
    "netcat",
    "jupyter",
    "jupyter-lab",
    "jupyter-notebook",
    "tensorboard",
    "socat",
    "mlflow",
    "ray",
    "streamlit",
    "gradio",
)
BUILT_IN = frozenset({"PWD", "HOSTNAME", "RANDOM", "SECONDS", "LINENO", "PATH", "HOME", "USER"})


def substitution(job: Job) -> Iterator[Hit]:
    """$(NAME), which runs a command called NAME."""
    for number, line in enumerate(job.lines, 1):
        if line.lstrip().startswith("#") or not job.is_bash:
            continue
        for found in CAPITALS.finditer(line):
            message = (
                f"{found.group()} runs a command {found[1]}, which does not exist; ${{{found[1]}}} is the variable"
            )
            yield Hit(
                line=number,
                column=found.start() + 1,
                width=len(found.group()),
                message=message,
                repair=f"${{{found[1]}}}",
            )


def unclosed(job: Job) -> Iterator[Hit]:
    """A quote or bracket that never ends."""
    for problem in job.script.problems[:1]:
        message = f"{problem.what}: the shell reads on to the end of the file"
        yield Hit(line=problem.line, column=problem.column, message=message, repair=_swapped(job, problem.line))


def _swapped(job: Job, line: int) -> str:
    text = job.lines[line - 1] if line <= len(job.lines) else ""
    return text.strip().replace(")'\"", ")\"'") if ")'\"" in text else ""


def no_semicolon(job: Job) -> Iterator[Hit]:
    """`if [ … ] then` in one line."""
    wanted = {"if": "then", "elif": "then", "while": "do", "until": "do"}
    for command in job.commands:
        word = next((each for each in command.words[1:] if each.raw == wanted.get(command.keyword)), None)
        if word is not None:
            yield hit(word, f"{word.raw} is read as an argument: a ; must stand before it", f"; {word.raw}")
        first = command.words[0].raw
        loop = next((each for each in command.words[2:] if each.raw == "do"), None) if first == "for" else None
        if loop is not None:
            yield hit(loop, "do is read as an argument: a ; must stand before it", "; do")


def space_after_backslash(job: Job) -> Iterator[Hit]:
    """A backslash that continues nothing, since a space follows."""
    for number, line in enumerate(job.lines, 1):
        found = re.search(r"\\([ \t]+)$", line)
        if found and job.is_bash and not line.lstrip().startswith("#"):
            message = (
                f"{len(found[1])} spaces after the backslash: the line ends here and the next is a command of its own"
            )
            message = message.replace("1 spaces", "a space")
            yield Hit(
                line=number, column=found.start() + 1, width=len(found.group()), message=message, repair=line.strip()
            )


def no_continuation(job: Job) -> Iterator[Hit]:
    """A line that begins with an option: the line before was to go on."""
    for before, command in pairwise(job.commands):
        word = command.words[0]
        if not re.match(r"--?[a-zA-Z]", word.raw) or command.keyword or word.line == before.words[0].line:
            continue
        last = before.words[-1]
        previous = job.lines[word.line - 2].strip() if 1 < word.line <= len(job.lines) + 1 else ""
        why = (
            "a comment ends the command before it"
            if previous.startswith("#")
            else "the line before has no \\ at its end"
        )
        if re.search(r"\\[ \t]+$", job.lines[last.line - 1]) or command.outer is not before.outer:
            continue  # said already
        yield hit(word, f"{word.raw} is run as a command: {why}", f"{job.lines[last.line - 1].rstrip()} \\")


def first_of_array(job: Job) -> Iterator[Hit]:
    """$NAME of an array, which is its first element."""
    arrays = {variable.name: variable.word for variable in job.variables if re.match(r"\w+=\(", variable.word.raw)}
    for command in job.commands:
        for word in command.words:
            for found in re.finditer(r"\$(\w+)\b|\$\{(\w+)\}", word.live):
                name = found[1] or found[2]
                is_own = word.raw.startswith((f"{name}=", f"{name}+="))
                if name in arrays and not is_own and word.line >= arrays[name].line:
                    where = f"{name} is an array (line {arrays[name].line})"
                    message = f"{found.group()} is the first element alone: {where}"
                    yield hit(word, message, f'"${{{name}[@]}}"')


def removal(job: Job) -> Iterator[Hit]:
    """rm -rf of a path that begins with a variable which may be empty."""
    stops = any(
        command.program == "set" and any(re.match(r"-\w*u|nounset", word.text) for word in command.argv)
        for command in job.commands
    )
    assigned = {variable.name for variable in job.variables if variable.value}
    for command in job.commands:
        options = "".join(word.text for word in command.argv[1:] if word.text.startswith("-"))
        if command.program != "rm" or "r" not in options.lower():
            continue
        for word in command.argv[1:]:
            found = re.match(r"\$(\w+)(/.*)?$|\$\{(\w+)\}(/.*)?$", word.text)
            name = (found[1] or found[3]) if found else ""
            if found and name not in assigned | BUILT_IN and not stops and (found[2] or found[4]):
                rest = found[2] or found[4]
                yield hit(word, f"where ${name} is not set, this removes {rest}", f'rm -rf "${{{name}:?}}{rest}"')


def open_listener(job: Job) -> Iterator[Hit]:
    """Something that listens on every interface."""
    for command in job.commands:
        if command.program not in SERVERS:
            continue
        text = " ".join(word.text for word in command.argv)
        if LISTENING.search(text) or "--bind_all" in text:
            word = next(word for word in command.argv if re.search(r"0\.0\.0\.0|\*|::|bind_all", word.text))
            repair = "127.0.0.1, and from your own computer: ssh -L PORT:localhost:PORT …"
            yield hit(
                word,
                f"{command.program} listens on every network of the node: anybody who can reach it may connect",
                repair,
            )


def stray_words(job: Job) -> Iterator[Hit]:
    """Words after an assignment that are no names."""
    for command in job.commands:
        if command.program != "export" or len(command.argv) < 3 or not ASSIGNMENT.match(command.argv[1].raw):
            continue
        assigned = {variable.name for variable in job.variables}
        strays = [word for word in command.argv[2:] if "=" not in word.raw and word.text not in assigned]
        strays = [word for word in strays if not word.raw.startswith("$")]
        if strays:
            text = " ".join(word.raw for word in strays)
            repair = f"{command.argv[0].raw} {command.argv[1].raw}   # {text}"
            yield hit(strays[0], f"{text!r} is no value: the shell takes each word for the name of a variable", repair)


def windows_lines(job: Job) -> Iterator[Hit]:
    """Lines that end as Windows ends them."""
    if "\r\n" in job.text:
        count = job.text.count("\r\n")
        message = f"{count} lines end as on Windows: the shell sees a carriage return at the end of every word"
        yield Hit(line=1, width=max(1, len(job.lines[0])), message=message, repair=f"sed -i 's/\\r$//' {job.path}")


def typographic(job: Job) -> Iterator[Hit]:
    """Quotes, dashes and spaces from a slide or a word processor."""
    for number, line in enumerate(job.lines, 1):
        if line.lstrip().startswith("#") and not job.is_batch:
            continue
        code = (
            line
            if line.startswith(words()["slurm"]["directive"])
            else ""
            if line.lstrip().startswith("#")
            else re.sub(r"\s#.*|'[^']*'", _blank, line)
        )
        found = next((each for each in re.finditer("|".join(TYPOGRAPHIC), code) if _matters(code, each.start())), None)
        if found:
            char = found.group()
            name = "a space that does not separate" if char == "\u00a0" else f"{char} from a slide or a word processor"
            message = f"{name}: to the shell it is a letter; {TYPOGRAPHIC[char]!r} is meant"
            yield Hit(line=number, column=found.start() + 1, message=message, repair=_plain(line).strip())


def _blank(found: re.Match[str]) -> str:
    return " " * len(found.group())


def _plain(line: str) -> str:
    for char, plain in TYPOGRAPHIC.items():
        line = line.replace(char, plain)
    return line


def _matters(line: str, at: int) -> bool:
    """A dash in the words of a message does no harm."""
    inside = line[:at].count('"') % 2 == 1
    is_option = line[at - 1 : at] in (" ", "") and line[at + 1 : at + 2].isalnum()
    return not inside and (line[at] not in "–—−" or is_option)


def spaces_around_equals(job: Job) -> Iterator[Hit]:
    """NAME = value, which runs NAME."""
    for command in job.commands:
        argv = command.argv
        if len(argv) > 1 and argv[1].raw.startswith("=") and re.fullmatch(r"[A-Za-z_]\w*", argv[0].raw):
            if argv[1].raw.startswith("=="):
                continue
            value = argv[1].raw[1:] or (argv[2].raw if len(argv) > 2 else "")
            yield hit(
                argv[0], f"{argv[0].raw} is run as a command: an assignment has no spaces", f"{argv[0].raw}={value}"
            )


RULES = (
    Rule(code="ECH301", find=substitution),
    Rule(code="ECH302", find=unclosed),
    Rule(code="ECH303", find=no_semicolon),
    Rule(code="ECH304", find=space_after_backslash),
    Rule(code="ECH305", find=no_continuation),
    Rule(code="ECH306", find=first_of_array),
    Rule(code="ECH307", find=removal),
    Rule(code="ECH308", find=open_listener),
    Rule(code="ECH309", find=stray_words),
    Rule(code="ECH310", find=windows_lines),
    Rule(code="ECH311", find=typographic),
    Rule(code="ECH312", find=spaces_around_equals),
)
