"""Rules about files of settings: DeepSpeed's JSON, Accelerate's YAML."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from echelon.environment.regular_files import json_object
from echelon.lint.finding import Edit, Hit, Rule, judged, lines_of
from echelon.lint.job import JobScript
from echelon.lint.pages import words
from echelon.units import counted


@dataclass(frozen=True, kw_only=True)
class SettingsFile:
    """A file of settings, with the jobs that were given beside it."""

    path: str
    text: str
    jobs: tuple[JobScript, ...] = ()

    @cached_property
    def lines(self) -> list[str]:
        return lines_of(self.text)

    @cached_property
    def values(self) -> dict[str, Any]:
        """The content of a JSON file; empty if it is broken or no table."""
        return json_object(self.text) if self.path.endswith(".json") else {}

    def is_named_in(self, job: JobScript) -> bool:
        return os.path.basename(self.path) in job.text

    def hit(self, key: str, message: str, repair: str = "") -> Hit:
        for number, line in enumerate(self.lines, 1):
            if match := re.search(rf'"?\b{re.escape(key)}"?\s*:.*', line):
                return Hit(
                    line=number,
                    column=match.start() + 1,
                    width=len(match.group().rstrip(" ,")),
                    message=message,
                    repair=repair,
                )
        return Hit(line=1, message=message, repair=repair)


def not_json(settings: SettingsFile) -> Iterator[Hit]:
    """Find a file with the name .json that is not JSON."""
    if not settings.path.endswith(".json"):
        return
    try:
        json.loads(settings.text)
    except json.JSONDecodeError as error:
        text = settings.lines[error.lineno - 1].strip() if error.lineno <= len(settings.lines) else ""
        mistake = error.msg[:1].lower() + error.msg[1:]
        repair = ""
        edits: tuple[Edit, ...] = ()
        if comma := _comma(error.doc, error.pos):
            mistake = "JSON has no comma after the last value"
            repair, edits = "remove the comma", (comma,)
        elif text.startswith(("//", "#")) or "//" in text:
            mistake = "JSON has no comments"
            repair = "remove the comment"
            if text.startswith(("//", "#")):
                edits = (Edit(line=error.lineno, column=1, old=f"{settings.lines[error.lineno - 1]}\n", new=""),)
        message = f"{mistake}: no program can read this file"
        line, column = (edits[0].line, edits[0].column) if edits else (error.lineno, max(1, error.colno))
        yield Hit(line=line, column=column, message=message, repair=repair, edits=edits)
    except RecursionError:
        yield Hit(line=1, message="the nesting is too deep: no program can read this file")


def _comma(text: str, at: int) -> Edit | None:
    """Return the edit that removes a trailing comma; Python 3.13 gives its place, others the place after it."""
    if text[at : at + 1] != ",":
        at = len(text[:at].rstrip()) - 1
    if text[max(0, at) : at + 1] != "," or text[at + 1 :].lstrip()[:1] not in ("}", "]"):
        return None
    return Edit(line=text.count("\n", 0, at) + 1, column=at - text.rfind("\n", 0, at), old=",", new="")


def batch_sizes(settings: SettingsFile) -> Iterator[Hit]:
    """Find DeepSpeed sizes that violate train_batch_size = micro batch × accumulation × ranks."""
    values = settings.values
    total, micro = values.get("train_batch_size"), values.get("train_micro_batch_size_per_gpu")
    steps = values.get("gradient_accumulation_steps", 1)
    if not isinstance(total, int) or not isinstance(micro, int) or not isinstance(steps, int) or micro * steps < 1:
        return
    job = next((job for job in settings.jobs if job.devices_per_node), None)
    ranks = job.devices_per_node * job.num_nodes if job else 0
    if total % (micro * steps):
        product = f"{micro} × {steps} = {micro * steps}"
        message = f"train_batch_size {total} is not a multiple of {product}: it fits no number of ranks"
        yield settings.hit(
            "train_batch_size", message, f'"train_batch_size": {max(1, total // (micro * steps)) * micro * steps}'
        )
    elif ranks and total != micro * steps * ranks:
        message = (
            f"train_batch_size {total}, but {micro} × {steps} × {counted(ranks, 'rank')} = {micro * steps * ranks}"
        )
        mistake = settings.hit("train_batch_size", message, f'"train_batch_size": {micro * steps * ranks}')
        yield judged(mistake, is_certain=job is not None and settings.is_named_in(job))


def two_precisions(settings: SettingsFile) -> Iterator[Hit]:
    """Find DeepSpeed settings with both fp16 and bf16."""
    on = [name for name in ("fp16", "bf16") if _is_on(settings.values.get(name))]
    if len(on) == 2:
        yield settings.hit(
            "bf16",
            "fp16 and bf16 are both enabled, but DeepSpeed accepts only one of them",
            '"fp16": {"enabled": false}',
        )


def _is_on(value: object) -> bool:
    return isinstance(value, dict) and value.get("enabled") is True


def bf16(settings: SettingsFile) -> Iterator[Hit]:
    """Find bf16 on a chip without it."""
    chips = [job.kind.chip for job in settings.jobs if job.kind and job.kind.chip in words()["chips"]["without_bf16"]]
    is_on = _is_on(settings.values.get("bf16")) or re.search(
        r"^\s*mixed_precision:\s*['\"]?bf16", settings.text, re.MULTILINE
    )
    if chips and is_on:
        key = "bf16" if _is_on(settings.values.get("bf16")) else "mixed_precision"
        yield settings.hit(
            key,
            f"bf16, but {chips[0]} has no bf16 hardware",
            "mixed_precision: fp16" if key != "bf16" else '"fp16": {"enabled": true}',
        )


def processes(settings: SettingsFile) -> Iterator[Hit]:
    """Find Accelerate's numbers that differ from the job's."""
    job = next((job for job in settings.jobs if job.devices_per_node), None)
    if job is None or settings.path.endswith(".json"):
        return
    for key, there in (("num_machines", job.num_nodes), ("num_processes", job.num_nodes * job.devices_per_node)):
        match = re.search(rf"^\s*{key}:\s*([0-9]{{1,9}})\s*$", settings.text, re.MULTILINE)
        overruled = any(start.option(key.replace("_", "-")) for start in job.started("accelerate"))
        if match and int(match[1]) != there and not overruled and any(job.started("accelerate")):
            mistake = settings.hit(key, f"{key}: {match[1]}, but the job has {there}", f"{key}: {there}")
            yield judged(mistake, is_certain=settings.is_named_in(job))


RULES = (
    Rule(code="ECH601", find=not_json),
    Rule(code="ECH602", find=batch_sizes),
    Rule(code="ECH603", find=two_precisions),
    Rule(code="ECH604", find=bf16),
    Rule(code="ECH605", find=processes),
)
