"""Check DeepSpeed's configuration: its syntax, and the product of its batch sizes."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.host import Host
from echelon.launch.frameworks import installed

OPTIONS = ("--deepspeed_config", "--deepspeed-config", "--deepspeed")
"""Options that pass the file to scripts; the last is Transformers' own, and a mere flag of DeepSpeed."""
BATCH, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
SPLITTING = ("sequence_parallel_size", "tensor_parallel", "pipeline")
"""Keys that make several ranks share one part of the batch."""
WIDTH = 80
ANSWER_SECONDS = 30.0
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?:#|//)[^\n]*|/\*.*?\*/', re.DOTALL)
"""Match a quoted text, which stays, or a comment."""


def named_in(arguments: Sequence[str]) -> str:
    """Return the configuration file that a command line names; empty if none."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in OPTIONS:
            value = value if equals else (arguments[place + 1 : place + 2] or [""])[0]
            if value.endswith(".json") and not value.startswith("-"):
                return value
    return ""


def refuse_wrong(path: str, num_ranks: int, cwd: str) -> None:
    """Raise UsageError for a file that is missing or invalid, or whose batch sizes do not fit the ranks."""
    full = os.path.join(cwd, path)
    try:
        text = regular_files.read_text(full)
    except OSError as error:
        raise _unreadable(path, full, error) from None
    settings = _parsed(text, path, full)
    if isinstance(settings, dict) and num_ranks:
        refuse_wrong_batch(settings, num_ranks, path)


def _unreadable(path: str, full: str, error: OSError) -> UsageError:
    import difflib  # only an error pays these 5 ms

    folder, name = os.path.split(full)
    try:
        others = [entry for entry in os.listdir(folder) if entry.endswith(".json")]
    except OSError:
        others = []
    near = difflib.get_close_matches(name, others, n=2) or sorted(others)[:4]
    hint = f"the nearest names there: {', '.join(near)}" if near else f"ls {folder}"
    return UsageError(f"echelon cannot read DeepSpeed's configuration {path}: {error.strerror}", hint=hint)


def _parsed(text: str, path: str, full: str) -> object:
    """Return the content of the file; DeepSpeed reads Hjson, which accepts more than JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        wrong = error
    settings = _asked(full) if installed.is_there("hjson") else _lenient(text)
    if settings is not None:
        return settings
    line = ""
    if isinstance(wrong, json.JSONDecodeError):
        where = f", line {wrong.lineno}, column {wrong.colno}: {wrong.msg}"
        line = "".join(text.splitlines()[wrong.lineno - 1 : wrong.lineno]).strip()[:WIDTH]
    else:
        where = f": {wrong}"
    raise UsageError(
        f"{path} is not valid JSON{where}", details=f"    {line}" if line else "", hint=f"python -m json.tool {path}"
    )


def _asked(full: str) -> object:
    """Return the file as DeepSpeed's own reader parses it; None if that fails."""
    code = "import hjson, json, sys; print(json.dumps(hjson.load(open(sys.argv[1]))))"
    done = Host().ask([sys.executable, "-c", code, full], timeout_seconds=ANSWER_SECONDS)
    return json.loads(done.stdout) if done.exit_code == 0 else None


def _lenient(text: str) -> object:
    """Parse JSON with comments, trailing commas or missing commas between lines; return None for other errors."""
    kept = TOKEN.sub(lambda found: found.group() if found.group().startswith('"') else "", text)
    lines = "\n".join(line.rstrip() for line in kept.splitlines() if line.strip())
    joined = re.sub(r'(["\d\]}el])\n(\s*")', r"\1,\n\2", lines)
    try:
        return json.loads(re.sub(r",(\s*[}\]])", r"\1", joined))
    except ValueError:
        return None


def refuse_wrong_batch(settings: Mapping[str, object], num_ranks: int, path: str) -> None:
    """Raise UsageError if batch = micro-batch × accumulation × ranks cannot hold."""
    if any(key in settings for key in SPLITTING):
        return
    batch, micro, steps = (_number(settings, key) for key in (BATCH, MICRO, STEPS))
    if batch is None or any(settings.get(key) == "auto" for key in (BATCH, MICRO, STEPS)):
        return
    shared = (micro or 1) * (steps or 1) * num_ranks
    fits = batch == shared if micro and steps else batch % shared == 0 and batch >= shared
    if fits:
        return
    known = [f"{value} ({key})" for key, value in ((MICRO, micro), (STEPS, steps)) if value]
    product = " × ".join([*known, f"{num_ranks} ranks"])
    does = f"is not {product} = {shared}" if micro and steps else f"is not a multiple of {product} = {shared}"
    raise UsageError(
        f"{path}: {BATCH} {batch} {does}, so DeepSpeed would stop in every rank",
        hint=f'"{BATCH}": {shared if micro and steps else max(1, round(batch / shared)) * shared}   or remove it: '
        f'DeepSpeed computes it from "{MICRO}"',
    )


def _number(settings: Mapping[str, object], key: str) -> int | None:
    value = settings.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
