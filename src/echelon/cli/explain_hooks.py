"""`echelon run --explain-hooks`: what echelon replaces in PyTorch, Python and libraries in each rank, and why."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from echelon.cli.options import Scanned
from echelon.errors import RunError, UsageError
from echelon.host import Host, own_command
from echelon.orders.scale import AUTO_FIT, DEFAULT, ScaleOptions
from echelon.pytorch import targets
from echelon.spec import Job

PROGRAM = "echelon.train.explain_hooks"
MEASURES = ("measuring.install", "events")
EXPLICIT, MEASURED = "explicit", "measured"  # in place of options
PATIENCE_SECONDS = 600.0  # to import PyTorch from a shared disk on a full node
WIDTH = 80
AT_ONCE, ALL_RANKS = "at once", "all ranks"
_TITLES = {True: "At once", False: "When the script imports the library of the name"}
Rows = list[dict[str, str]]


def table(scanned: Scanned, read_job: Callable[[Scanned], Job]) -> str:
    """Return what is replaced in the ranks of a command line; without a script, in those of one for one device."""
    job = read_job(scanned if scanned.rest else replace(scanned, rest=("train.py",)))
    if job.container:
        raise UsageError(
            f"the Python of {job.container} runs the script, but --explain-hooks does not look into an image",
            hint="remove --container: the table is then that of this Python",
        )
    asked = _decided(job) if scanned.rest else _as_asked(job)
    rows = _installed(asked, Host()) if not asked.why_not else []
    if "json" in scanned.values:
        return json.dumps(rows, indent=2, ensure_ascii=False)
    return text_of(rows, asked.title) if not asked.why_not else f"echelon replaces nothing: {asked.why_not}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What is to be installed."""

    options: ScaleOptions = DEFAULT
    is_explicit: bool = False
    """Whether the script calls echelon.start(), which installs less than what scales an unchanged script."""
    why_unscaled: str = ""
    """Why the script is only measured."""
    why_not: str = ""
    """Why nothing is replaced."""

    @property
    def title(self) -> str:
        if self.is_explicit:
            return "echelon.start(), which the script calls,"
        if self.why_unscaled:
            return f"echelon run, which measures the script and does not scale it ({self.why_unscaled}),"
        return " ".join([f"echelon run --scale {self.options.how}", *self.options.written()])


def _as_asked(job: Job) -> _Asked:
    how = "data" if job.scale in ("auto", AUTO_FIT) else job.scale
    options = job.scale_options._replace(how=how, is_auto=job.scale == "auto")
    return _Asked(options=options, why_unscaled="--scale off" if how == "off" else "")


def _decided(job: Job) -> _Asked:
    """Return how a script is scaled, or why it is not."""
    from echelon.launch import prepare
    from echelon.script import distributes
    from echelon.script.reading import of_job

    reading = of_job(job)
    plan = prepare.prepare(job, reading=reading)
    target = job.command.target
    if plan.scale_options is not None:
        return _Asked(options=plan.scale_options)
    if reading is None:
        return _Asked(why_not=f"{target} is a program, which echelon starts as it is")
    if distributes.how(reading.imports) == "it imports echelon":
        return _Asked(is_explicit=True)
    no_reason = "--scale off" if job.scale == "off" else f"{target} {distributes.NEEDS}"
    return _Asked(why_unscaled=plan.scale_why or no_reason)


def _installed(asked: _Asked, host: Host) -> Rows:
    """Return the rows of two ranks when the script begins: two processes install them."""
    if find_spec("torch") is None:
        raise UsageError(
            "the Python of echelon has no PyTorch, but --explain-hooks installs the hooks to list them",
            hint="pip install torch",
        )
    environ = {name: value for name, value in host.environ.items() if not name.startswith("ECHELON_")}
    what = EXPLICIT if asked.is_explicit else MEASURED if asked.why_unscaled else asked.options.to_json()
    words = [*own_command.module(PROGRAM), what]
    done = host.ask(words, timeout_seconds=PATIENCE_SECONDS, environ=environ)
    answer = json.loads(done.stdout.splitlines()[-1]) if done.exit_code == 0 else {}  # a user's own file may print
    if isinstance(answer, list):
        return answer
    if answer.get("message"):
        raise UsageError(answer["message"], hint=answer["hint"])
    raise RunError("echelon could not install its hooks:", details=done.stderr.strip())


def text_of(rows: Rows, title: str) -> str:
    """Return a table for a person: one paragraph for all names that a part of echelon replaces for one reason."""
    about = (
        f"{title} replaces {len({row['name'] for row in rows})} names in each of several ranks. Each paragraph begins "
        "with the part of echelon that replaces the names below it (a module of echelon.train)."
    )
    if any(row["by"] not in MEASURES for row in rows):
        about += " Later, echelon replaces a few more names: when it splits a model, and for the duration of a block."
    lines = textwrap.wrap(about, WIDTH)
    for is_at_once, title in _TITLES.items():
        chosen = [row for row in rows if (row["when"] == AT_ONCE) == is_at_once]
        lines += ["", title, *_paragraphs(chosen)] if chosen else []
    return "\n".join([*lines, *_private_names(), *_stacks(rows)])


def _paragraphs(rows: Rows) -> list[str]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        groups.setdefault((row["by"], row["why"], row["ranks"]), []).append(row["name"])
    lines = []
    for (by, why, ranks), names in groups.items():
        where = "" if ranks == ALL_RANKS else f" ({ranks})"
        lines += _wrapped(f"{by}{where}: {why}", 2, 4)
        lines += _wrapped(", ".join(names), 6, 6)
    return lines


def _stacks(rows: Rows) -> list[str]:
    """Return the names that several parts of echelon replace, with the order in which their functions are called."""
    parts: dict[str, list[str]] = {}
    for row in rows:
        parts.setdefault(row["name"], []).insert(0, row["by"])  # the last installed is called first
    several = {name: called for name, called in parts.items() if len(set(called)) > 1}
    lines = [line for name, called in several.items() for line in _wrapped(f"{name}: {', '.join(called)}", 2, 6)]
    return ["", "Names with several rows, and which is called first", *lines] if lines else []


def _private_names() -> list[str]:
    names = [target.name for target in targets.of("scale") if "._" in target.name and "__" not in target.attribute]
    return ["", "Private names of PyTorch that are used, and looked up before a run", *_wrapped(", ".join(names), 6, 6)]


def _wrapped(text: str, first: int, following: int) -> list[str]:
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    room = WIDTH - max(first, following)
    text = " ".join(word if len(word) <= room else _broken(word, room) for word in text.split())
    return textwrap.wrap(text, WIDTH, initial_indent=" " * first, subsequent_indent=" " * following, **options)


def _broken(name: str, room: int) -> str:
    """Return a name that is longer than a line with a space after the last of its dots that a line has room for."""
    at = name.rfind(".", 0, room) + 1
    return f"{name[:at]} {name[at:]}"
