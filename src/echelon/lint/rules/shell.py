"""Rules about shell syntax: the shell notices most of these mistakes only when the job runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from echelon.lint.command import ASSIGNMENT, SimpleCommand, Word
from echelon.lint.finding import Edit, Hit, Rule, hit, judged
from echelon.lint.job import JobScript
from echelon.lint.pages import words
from echelon.lint.values import EXPORTS
from echelon.units import counted

CAPITALS = re.compile(r"\$\(([A-Z_][A-Z0-9_]{2,})\)")
TYPOGRAPHIC = {"“": '"', "”": '"', "‘": "'", "–": "--", "—": "--", "\u00a0": " ", "−": "-"}
LISTENING = re.compile(r"(?:--(?:ip|host|bind|listen|server[.]address)[= ]?|\s)(?:0\.0\.0\.0|\*|::)(?=[\s:'\"]|$)")
OPEN = re.compile(r"token=(?:''|\"\"|\s|$)|password=(?:''|\"\"|\s|$)|--no-?auth")
"""Match the options with which a server asks for no password."""
NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Match names of variables that a script may export without assigning them."""
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
SWAPPED = ")'\""
"""The end of "… $(…)" inside of single quotes, with its two quotes in the wrong order."""
BUILT_IN = frozenset({"PWD", "HOSTNAME", "RANDOM", "SECONDS", "LINENO", "PATH", "HOME", "USER"})


def substitution(job: JobScript) -> Iterator[Hit]:
    """Find $(NAME), which runs a command called NAME."""
    functions = {block.name for command in job.script.commands for block in command.blocks}
    expanded = {name for word in _all_words(job) for name in CAPITALS.findall(word.live)} - functions
    for number, line in enumerate(job.lines, 1):
        if line.lstrip().startswith("#") or not job.is_bash or number in job.literal_lines:
            continue
        for match in CAPITALS.finditer(line):
            if match[1] not in expanded and number not in job.document_lines:
                continue
            message = (
                f"{match.group()} runs a command {match[1]}, which does not exist; ${{{match[1]}}} is the variable"
            )
            yield Hit(
                line=number,
                column=match.start() + 1,
                width=len(match.group()),
                message=message,
                repair=f"${{{match[1]}}}",
                edits=(Edit(line=number, column=match.start() + 1, old=match.group(), new=f"${{{match[1]}}}"),),
            )


def _all_words(job: JobScript) -> Iterator[Word]:
    for command in job.script.commands:
        yield from command.words
        yield from (redirection.target for redirection in command.redirections)


def unclosed(job: JobScript) -> Iterator[Hit]:
    """Find a quote or bracket without an end."""
    for problem in job.script.problems[:1]:
        message = f"{problem.what}: the shell reads on to the end of the file"
        text = job.lines[problem.line - 1] if problem.line <= len(job.lines) else ""
        at = text.find(SWAPPED)
        edits = (Edit(line=problem.line, column=at + 1, old=SWAPPED, new=")\"'"),) if text.count(SWAPPED) == 1 else ()
        repair = "close it on this line, or find an unclosed one above"
        repair = text.strip().replace(SWAPPED, ")\"'") if at >= 0 else repair
        yield Hit(line=problem.line, column=problem.column, message=message, repair=repair, edits=edits)


def no_semicolon(job: JobScript) -> Iterator[Hit]:
    """Find `if [ … ] then` in one line."""
    wanted = {"if": "then", "elif": "then", "while": "do", "until": "do"}
    for command in job.script.commands:
        word = next((each for each in command.words[1:] if each.raw == wanted.get(command.keyword)), None)
        if word is not None:
            message = f"the shell reads {word.raw} as an argument: put a ; before it"
            yield hit(word, message, f"; {word.raw}", edits=_semicolon(job, word))
        first = command.words[0].raw
        has_list = (
            first == "for" and len(command.words) > 2 and command.words[2].raw == "in"
        )  # `for each do` needs none
        loop = next((each for each in command.words[3:] if each.raw == "do"), None) if has_list else None
        if loop is not None:
            message = "the shell reads do as an argument: put a ; before it"
            yield hit(loop, message, "; do", edits=_semicolon(job, loop))


def _semicolon(job: JobScript, word: Word) -> tuple[Edit, ...]:
    before = job.lines[word.line - 1][: word.column - 1]
    kept = before.rstrip()
    if not kept:
        return ()
    old = before[len(kept) :] + word.raw
    return (Edit(line=word.line, column=len(kept) + 1, old=old, new=f"; {word.raw}"),)


def space_after_backslash(job: JobScript) -> Iterator[Hit]:
    """Find a backslash that continues nothing, because a space follows."""
    for number, line in enumerate(job.lines, 1):
        match = re.search(r"\\([ \t]+)$", line)
        if match and number in job.quoted_lines and number + 1 in job.quoted_lines:
            message = "a space follows the backslash: inside quotes the program gets both"
            edits = (Edit(line=number, column=match.start() + 1, old=match.group(), new="\\"),)
            at = {"column": match.start() + 1, "width": len(match.group())}
            yield Hit(line=number, message=message, repair=line.strip(), edits=edits, severity="warning", **at)
        elif match and job.is_bash and not line.lstrip().startswith("#"):
            spaces = "a space" if len(match[1]) == 1 else f"{len(match[1])} spaces"
            message = (
                f"{spaces} after the backslash: the line ends here, and the shell runs the next line as a new command"
            )
            edits = (Edit(line=number, column=match.start() + 1, old=match.group(), new="\\"),)
            yield Hit(
                line=number, column=match.start() + 1, width=len(match.group()), message=message, repair=line.strip(),
                edits=edits,
            )  # fmt: skip


def no_continuation(job: JobScript) -> Iterator[Hit]:
    """Find a line that begins with an option: the line before should continue."""
    for before, command in pairwise(job.script.commands):
        word = command.words[0]
        if not re.match(r"--?[a-zA-Z]", word.raw) or command.keyword or word.line == before.words[0].line:
            continue
        if _is_pattern(job, word) or job.lines[word.line - 1][: word.column - 1].strip():
            continue
        last = before.words[-1]
        previous = job.lines[word.line - 2].strip() if 1 < word.line <= len(job.lines) + 1 else ""
        why = (
            "a comment ends the command before it"
            if previous.startswith("#")
            else "the line before has no \\ at its end"
        )
        if re.search(r"\\[ \t]+$", job.lines[last.line - 1]) or command.outer is not before.outer:
            continue  # another finding reports this line
        repair = f"{job.lines[last.line - 1].rstrip()} \\"
        yield hit(word, f"the shell runs {word.raw} as a command: {why}", repair, edits=_continued(job, last, word))


def _is_pattern(job: JobScript, word: Word) -> bool:
    """Say whether a word is a pattern of a case: -h | --help)."""
    rest = job.lines[word.line - 1][word.column - 1 :]
    return re.match(r"[^\s()|;]+(?:\s*\|\s*[^\s()|;]+)*\s*(?:\)|\|\s*\\?$)", rest) is not None


def _continued(job: JobScript, last: Word, word: Word) -> tuple[Edit, ...]:
    """Return the edit that continues a line; none if other text stands between the two words."""
    line = job.lines[last.line - 1]
    kept = line.rstrip()
    if word.line != last.line + 1 or not kept.endswith(last.raw) or job.lines[word.line - 1][: word.column - 1].strip():
        return ()
    return (Edit(line=last.line, column=len(kept) + 1, old=line[len(kept) :], new=" \\"),)


def first_of_array(job: JobScript) -> Iterator[Hit]:
    """Find $NAME of an array, which is only its first element."""
    arrays: dict[str, Word] = {}
    for command in job.script.commands:
        is_test = command.program in ("[[", "[", "test")  # it asks whether there is a first element
        for word in command.words if not is_test else ():
            for match in re.finditer(r"\$(\w+)\b|\$\{(\w+)\}", word.live):
                name = match[1] or match[2]
                is_own = re.match(rf"{name}\+?=|\w+=\(\s*\${name}\s*\)$", word.raw) is not None
                if name in arrays and not is_own:
                    where = f"{name} is an array (line {arrays[name].line})"
                    message = f"{match.group()} is only the first element: {where}"
                    yield hit(word, message, f'"${{{name}[@]}}"')
        _follow_arrays(command, arrays)


def _follow_arrays(command: SimpleCommand, arrays: dict[str, Word]) -> None:
    """Note the arrays that a command makes; another value replaces the first element, so that it is meant alone."""
    for word in (
        *command.assignments,
        *(command.argv[1:] if command.program in (*EXPORTS, "local", "readonly") else ()),
    ):
        if match := re.match(r"(\w+)=(\(?)", word.raw):
            arrays.pop(match[1], None)
            if match[2]:
                arrays[match[1]] = word
    if command.program in ("for", "read", "unset"):
        for word in command.argv[1:]:
            arrays.pop(word.text, None)


def removal(job: JobScript) -> Iterator[Hit]:
    """Find rm -rf of a path that begins with a variable which may be empty."""
    stops = any(
        command.program == "set" and any(re.match(r"-\w*u|nounset", word.text) for word in command.argv)
        for command in job.script.commands
    )
    assigned = {variable.name for variable in job.variables if variable.value}
    loops = (each for each in job.script.commands if each.program in ("for", "select", "read"))
    assigned |= {word.text for command in loops for word in command.argv[1:]}
    for command in job.script.commands:
        options = "".join(word.text for word in command.argv[1:] if word.text.startswith("-"))
        if command.program != "rm" or "r" not in options.lower():
            continue
        for word in command.argv[1:]:
            match = re.match(r"\$(\w+)(/.*)?$|\$\{(\w+)\}(/.*)?$", word.text)
            name = (match[1] or match[3]) if match else ""
            if match and name not in assigned | BUILT_IN and not stops and (match[2] or match[4]):
                rest = match[2] or match[4]
                becomes = re.sub(rf"\$(?:{name}\b|\{{{name}\}})", f"${{{name}:?}}", word.raw, count=1)
                yield hit(word, f"if ${name} is not set, this removes {rest}", becomes, becomes=becomes)


def open_listener(job: JobScript) -> Iterator[Hit]:
    """Find a server that listens on every interface."""
    for command in job.script.commands:
        if command.program not in SERVERS:
            continue
        text = " ".join(word.text for word in command.argv)
        if LISTENING.search(text) or "--bind_all" in text:
            word = next(word for word in command.argv if re.search(r"0\.0\.0\.0|\*|::|bind_all", word.text))
            repair = "127.0.0.1, and from your own computer: ssh -L PORT:localhost:PORT …"
            message = (
                f"{command.program} listens on every network of the node: anyone who can reach the node may connect"
            )
            is_certain = command.program in ("nc", "ncat", "netcat", "socat") or OPEN.search(text) is not None
            yield judged(hit(word, message, repair), is_certain=is_certain)


def stray_words(job: JobScript) -> Iterator[Hit]:
    """Find words after an assignment that are no names."""
    for command in job.script.commands:
        if command.program != "export" or len(command.argv) < 3 or not ASSIGNMENT.match(command.argv[1].raw):
            continue
        assigned = {variable.name for variable in job.variables}
        strays = [word for word in command.argv[2:] if "=" not in word.raw and word.text not in assigned]
        strays = [word for word in strays if not word.raw.startswith("$")]
        if any(not NAME.fullmatch(word.raw) for word in strays):
            text = " ".join(word.raw for word in strays)
            repair = f"{command.argv[0].raw} {command.argv[1].raw}   # {text}"
            message = f"{text!r} is not a value: the shell reads each word as the name of a variable"
            ends = job.lines[strays[0].line - 1][strays[0].column - 1 :].rstrip() == text
            yield hit(strays[0], message, repair, becomes=f"# {strays[0].raw}" if ends else "")


def windows_lines(job: JobScript) -> Iterator[Hit]:
    """Find lines that end with \\r\\n."""
    if "\r\n" in job.text:
        count = job.text.count("\r\n")
        message = (
            f"Windows line ends ({counted(count, 'line')}): the shell sees a carriage return at the end of every word"
        )
        numbered = enumerate(job.text.split("\n"), 1)
        edits = tuple(Edit(line=n, column=len(line), old="\r", new="") for n, line in numbered if line.endswith("\r"))
        repair = f"sed -i 's/\\r$//' {job.path}"
        yield Hit(line=1, width=max(1, len(job.lines[0])), message=message, repair=repair, edits=edits)


def typographic(job: JobScript) -> Iterator[Hit]:
    """Find quotes, dashes and spaces of a slide or a word processor."""
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
        matches = [each for each in re.finditer("|".join(TYPOGRAPHIC), code) if _matters(code, each.start())]
        if matches:
            char = matches[0].group()
            name = "a space that does not separate" if char == "\u00a0" else f"{char} from a slide or a word processor"
            message = f"{name}: to the shell it is a letter; replace it with {_plain(code, matches[0])!r}"
            edits = tuple(
                Edit(line=number, column=each.start() + 1, old=each.group(), new=_plain(code, each)) for each in matches
            )
            repair = line
            for match in reversed(matches):
                repair = repair[: match.start()] + _plain(code, match) + repair[match.end() :]
            yield Hit(line=number, column=matches[0].start() + 1, message=message, repair=repair.strip(), edits=edits)


def _blank(match: re.Match[str]) -> str:
    return " " * len(match.group())


def _plain(line: str, match: re.Match[str]) -> str:
    """Return the plain characters that a program replaced; a dash before a single letter was a single dash."""
    plain = TYPOGRAPHIC[match.group()]
    return "-" if plain == "--" and re.match(r"\w(?!\w)", line[match.end() :]) else plain


def _matters(line: str, at: int) -> bool:
    """Say whether a character matters to the shell: a dash in a quoted message does not."""
    inside = line[:at].count('"') % 2 == 1
    is_option = line[at - 1 : at] in (" ", "") and line[at + 1 : at + 2].isalnum()
    return not inside and (line[at] not in "–—−" or is_option)


def spaces_around_equals(job: JobScript) -> Iterator[Hit]:
    """Find NAME = value, which runs NAME."""
    for command in job.script.commands:
        argv = command.argv
        if len(argv) > 1 and argv[1].raw.startswith("=") and re.fullmatch(r"[A-Za-z_]\w*", argv[0].raw):
            if argv[1].raw.startswith("=="):
                continue
            value = argv[1].raw[1:] or (argv[2].raw if len(argv) > 2 else "")
            repair = f"{argv[0].raw}={value}"
            written = job.lines[argv[0].line - 1][argv[0].column - 1 :].rstrip()
            is_whole = bool(value) and " ".join(written.split()) == " ".join(word.raw for word in argv)
            is_sure = is_whole and len(argv) == 2 + (argv[1].raw == "=")
            edits = (Edit(line=argv[0].line, column=argv[0].column, old=written, new=repair),) if is_sure else ()
            message = f"the shell runs {argv[0].raw} as a command: an assignment has no spaces"
            yield hit(argv[0], message, repair, edits=edits)


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
