"""What turns the text of an option into its value, or raises UsageError with the repair; rows of options name them."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping

from echelon import units
from echelon.errors import UsageError, seen
from echelon.spec import LIBRARIES, ONE_PER_DEVICE, StageRequest, Tracker

MAX_RANKS = 1 << 20
_OF_TIME = "give seconds, or a number with m, h or d"
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def whole(text: str, option: str, *, least: int, usual: int = 1, most: int = MAX_RANKS) -> int:
    """Return a whole number; the hint of the error has `usual` or the least number."""
    if not re.fullmatch(r"[+-]?[0-9]{1,12}", text) or not least <= int(text) <= most:
        hint = f"{option} {max(least, usual)}"
        raise UsageError(f"{option} {seen(text)}: give a whole number of at least {least}", hint=hint)
    return int(text)


def plot_files(values: Mapping[str, str], *, usual: str) -> tuple[str, ...]:
    if "plot" not in values:
        return ()
    from echelon.monitor.page import plots

    return plots.paths(values["plot"], usual=usual)


def one_of(text: str, option: str, choices: tuple[str, ...], *, command: str = "") -> str:
    """Return one of the choices; with a command the hint is its line."""
    if text not in choices:
        repair = f"{option} {choices[0]}"
        hint = f"echelon {command} {repair} …" if command else repair
        raise UsageError(f"{option} {seen(text)}: the choices are {', '.join(choices)}", hint=hint)
    return text


def name(text: str, option: str) -> str:
    """Return a name that Slurm takes."""
    if not re.fullmatch(r"[\w.,@%+:-]+", text):
        raise UsageError(f"{option} {seen(text)}: give a name", hint=f"{option} NAME")
    return text


def image(text: str, option: str) -> str:
    if not text:
        raise UsageError(f"{option} '': give the name of an image", hint=f"{option} image.sif")
    return text


def run_directory(text: str, option: str) -> str:
    if not text:
        raise UsageError(f"{option} '': give the name of a directory", hint=f"echelon run {option} first …")
    return os.path.normpath(os.path.join(os.getcwd(), text))


def tracker(text: str, option: str) -> Tracker:
    """Return a tracker that this Python can write to: NAME, NAME:FOLDER, or for MLflow the address of a store."""
    from importlib.util import find_spec

    word, colon, where = text.partition(":")
    one_of(word, option, tuple(LIBRARIES), command="run")
    is_address = bool(re.match(r"[a-z+]+:", where))
    if (colon and not where) or (is_address and word != "mlflow"):
        raise UsageError(f"{option} {seen(text)}: give a folder after the colon", hint=f"{option} {word}:runs")
    module = find_spec(word)
    if module is None or module.origin is None:  # a folder of this name, such as W&B makes, is no library
        raise UsageError(
            f"{option} {word} needs the package {LIBRARIES[word]}, which {sys.executable} does not have",
            hint=shlex.join([sys.executable, "-m", "pip", "install", LIBRARIES[word]]),
        )
    if where and not is_address:
        where = there = os.path.abspath(where)
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        if not (os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)):
            why = "you may not write in" if os.path.isdir(there) else "a file is at"
            raise UsageError(f"{option} {text}: {why} {there}", hint=f"{option} {word}   writes into the run directory")
    return Tracker(name=word, where=where)


def stage_request(text: str, option: str) -> StageRequest:
    """Return what is to be staged: SRC, SRC=DST or shard:SRC."""
    kind, colon, rest = text.partition(":")
    is_shard = bool(colon) and kind == "shard"
    whole = rest if is_shard else text
    spelled, equals, target = (whole, "", "") if os.path.exists(whole) else whole.rpartition("=")
    if not equals:
        spelled = whole
    if not (os.path.isfile(spelled) or os.path.isdir(spelled)):
        what = "file or folder " if os.path.exists(spelled) else ""
        raise UsageError(f"{option} {seen(text)}: there is no {what}{seen(spelled)}", hint=f"{option} FOLDER")
    if equals and not os.path.isabs(target):
        raise UsageError(f"{option} {seen(text)}: give an absolute path after =", hint=f"{option} {spelled}=/tmp/data")
    if is_shard and not os.path.isdir(spelled):
        raise UsageError(f"{option} {seen(text)}: shard: is for a folder of files", hint=f"{option} {spelled}")
    source = os.path.realpath(spelled)
    return StageRequest(
        source=source, spelled=spelled, target=os.path.normpath(target) if target else "", is_shard=is_shard
    )


def ranks_per_node(text: str, _option: str = "") -> int:
    if text in ("auto", "gpu", "xpu"):
        return ONE_PER_DEVICE
    if text == "cpu":
        from echelon.environment import threads

        return threads.num_cores()
    if not re.fullmatch(r"[+-]?[0-9]{1,12}", text) or not 1 <= int(text) <= MAX_RANKS:
        raise UsageError(
            f"-n {seen(text)}: give a whole number of ranks per node, at least 1, or gpu, cpu or auto",
            hint="echelon run -n 2 …",
        )
    return int(text)


def nodes(text: str, option: str) -> tuple[int, int]:
    """Return the least and the largest number of nodes: N, or torchrun's elastic MIN:MAX."""
    match = re.fullmatch(r"([0-9]{1,12})(?::([0-9]{1,12}))?", text)
    least, most = (int(match.group(1)), int(match.group(2) or match.group(1))) if match else (0, 0)
    if not 1 <= least <= most <= MAX_RANKS:
        raise UsageError(
            f"{option} {seen(text)}: give a number of at least 1, or MIN:MAX", hint=f"echelon run {option} 2 …"
        )
    return least, most


def shards(text: str, option: str) -> int:
    number = whole(text, option, least=2)
    if number & (number - 1):
        nearest = 1 << (number.bit_length() - 1)
        raise UsageError(
            f"{option} {number}: a binary tree adds up the shards, so their number must be a power of two",
            hint=f"{option} {nearest}   or {option} {nearest * 2}",
        )
    return number


def pair(text: str, option: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        hint = f"echelon run {option} {key or 'NAME'}=VALUE …"
        raise UsageError(f"{option} {seen(text)}: give a name, = and a value", hint=hint)
    return key, value


def ranks(text: str, option: str) -> frozenset[int] | None:
    """Return the ranks whose output is shown; None: all."""
    if text == "all":
        return None
    if text == "none":
        return frozenset()
    shown: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,12})(?:-([0-9]{1,12}))?", part)
        low, high = (int(match.group(1)), int(match.group(2) or match.group(1))) if match else (1, 0)
        if not low <= high <= MAX_RANKS:
            raise UsageError(f"{option} {seen(text)}: give ranks, all or none", hint=f"echelon run {option} 0,4-7 …")
        shown.update(range(low, high + 1))
    return frozenset(shown)


def seconds(text: str, option: str, *, forms: str = _OF_TIME, usual: str = "90m") -> float:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([a-z]*)", text)
    if not match or match.group(2) not in _SECONDS:
        raise UsageError(f"{option} {seen(text)}: {forms}", hint=f"{option} {usual}")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def hang_timeout(text: str, option: str) -> float | str:
    """Return the seconds of silence after which a run hangs, "auto" or "off"."""
    if text in ("auto", "off"):
        return text
    forms = "give seconds above 0, or a number with m, h or d, or auto or off"
    number = seconds(text, option, forms=forms, usual="10m")
    if number == 0:
        raise UsageError(f"{option} {text}: {forms}", hint=f"echelon run {option} off …")
    return number


def slurm_seconds(text: str, option: str) -> float:
    return units.minutes(text, option) * 60.0
