"""`echelon checkpoint`: list and verify the checkpoints of a run, and export a model; torch is not needed."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.talk import print_json, print_table, say
from echelon.environment import digits
from echelon.errors import UsageError
from echelon.orders.checkpoint import SUBFOLDER
from echelon.units import aligned, size

if TYPE_CHECKING:
    from echelon.checkpoint.store import Checkpoint, CheckpointFolder, CheckpointStore

VERBS = ("ls", "verify", "export")
NUM_NAMED = 5

OPTIONS: tuple[Option, ...] = (
    Option(names=("--out",), value="DIR", takes="folder",
           help="the folder for exported files (default: the current one)"),
    Option(names=("--json",), help="print what ls or verify found as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)  # fmt: skip
HELP = Help(
    command="checkpoint",
    usage=("ls [RUN] [--json]", "verify [STEP] [RUN] [--json]", "export [STEP] [RUN] [--out DIR]"),
    about="List and verify the checkpoints of a run, and export a model that needs no echelon to be read.\n"
    "RUN is a run's name or directory, or a folder of checkpoints; without it, the newest run that has checkpoints.",
    operands=(
        Option(names=("ls",), choices=VERBS, help="list the checkpoints, and say which are whole, by their sizes"),
        Option(names=("verify",), help="read all files and compare their checksums; exit code 1 if one differs"),
        Option(names=("export",), help="write a safetensors file for each model (default: of the newest whole step)"),
    ),
    groups=(("options", OPTIONS),),
    example="echelon checkpoint verify train-8f65",
)


def main(arguments: list[str]) -> int:
    scanned = HELP.scan_all(arguments)
    values = scanned.last
    verb, *words = scanned.rest or ("",)
    if verb not in VERBS:
        asked = f"echelon checkpoint has no command {verb!r}" if verb else "echelon checkpoint needs a command"
        raise UsageError(f"{asked}: the commands are {', '.join(VERBS)}", hint="echelon checkpoint ls")
    if "out" in values and verb != "export":
        raise UsageError("--out is an option of echelon checkpoint export", hint="echelon checkpoint export --out DIR")
    if "json" in values and verb == "export":
        raise UsageError("--json is an option of ls and verify", hint="echelon checkpoint ls --json")
    if values.get("out") == "":
        raise UsageError("--out '': it needs a folder", hint="echelon checkpoint export --out DIR")
    step = int(words.pop(0)) if verb != "ls" and words and digits.is_number(words[0]) else None
    if len(words) > 1:
        raise UsageError(
            f"echelon checkpoint {verb} takes one run, but got {' '.join(words)}",
            hint=f"echelon checkpoint {verb} {words[0]}",
        )
    folder = find(words[0]) if words else find_newest()
    if verb == "ls":
        entries = _store(folder).entries()
        if "json" in values:
            _print_json(folder, entries)
        elif entries:
            print_table(table(entries))
        else:
            print(f"{folder} has no checkpoints")
        return 0
    if verb == "verify":
        return _verify(folder, step, as_json="json" in values)
    return _export(folder, step, values.get("out", "."))


def find(word: str) -> str:
    """Return the folder of checkpoints for a folder, a run directory, or a run's name; raise UsageError for others."""
    from echelon.launch import runs

    if os.path.isdir(word):
        if _has_checkpoints(word):
            return word
        if runs.is_run(word) or os.path.isdir(os.path.join(word, SUBFOLDER)):
            return os.path.join(word, SUBFOLDER)
        raise UsageError(
            f"{word} is neither a run directory nor a folder of checkpoints (step-000000120, …)", hint="echelon runs"
        )
    return os.path.join(runs.find(word), SUBFOLDER)


def find_newest() -> str:
    """Return the checkpoints of the current folder, or of the newest run that has some; raise UsageError if none."""
    from echelon.launch import runs

    if _has_checkpoints("."):
        return "."
    folders = [os.path.join(path, SUBFOLDER) for path in reversed(runs.all_runs())]
    for folder in folders:
        if _has_checkpoints(folder):
            return folder
    raise UsageError(
        f"no run of this folder has checkpoints (runs: {len(folders)})", hint="echelon checkpoint ls FOLDER"
    )


def _has_checkpoints(folder: str) -> bool:
    return os.path.isdir(folder) and bool(_store(folder).entries())


def _store(folder: str) -> CheckpointStore:
    from echelon.checkpoint.store import CheckpointStore

    return CheckpointStore(folder)


def _verify(folder: str, step: int | None, *, as_json: bool) -> int:
    entries = _store(folder).entries(deep=True)
    if step is not None:
        entries = [entry for entry in entries if entry.step == step] or [_no_step(folder, step)]
    if not entries:
        raise UsageError(f"{folder} has no checkpoints", hint="echelon checkpoint ls FOLDER")
    if as_json:
        _print_json(folder, entries)
    else:
        for entry in entries:
            num_files = len(entry.manifest.files) if entry.manifest else 0
            print(entry.finding or f"step {entry.step} is whole: {num_files} files, {size(_num_bytes(entry))}")
    return 1 if any(entry.finding for entry in entries) else 0


def _export(folder: str, step: int | None, out: str) -> int:
    from echelon.checkpoint.errors import CheckpointError, FormatError, WriteError
    from echelon.checkpoint.export import export

    checkpoint = _chosen(folder, step)
    try:
        exported = export(checkpoint.path, out)
    except (FormatError, WriteError):
        raise
    except CheckpointError as error:
        raise UsageError(error.message, hint=error.hint) from None
    for file in exported:
        print(file.path)
        say(f"{file.path} has {file.num_tensors} tensors of step {checkpoint.step}")
    return 0


def _chosen(folder: str, step: int | None) -> Checkpoint:
    """Return the checkpoint to export, after its checksums are compared."""
    from echelon.checkpoint import manifest
    from echelon.checkpoint.store import Checkpoint

    store = _store(folder)
    if step is None:
        newest, findings = store.latest(deep=True)
        for finding in findings:
            say(finding)
        if newest is None:
            raise UsageError(f"{folder} has no whole checkpoint", hint="echelon checkpoint verify")
        return newest
    path = next((entry.path for entry in store.entries() if entry.step == step), "")
    if not path:
        _no_step(folder, step)
    try:
        return Checkpoint(path, manifest.whole(path, step=step, deep=True))
    except manifest.Damage as damage:
        raise UsageError(
            f"step {step} cannot be exported: {damage.message}", hint=f"echelon checkpoint ls {folder}"
        ) from None


def _no_step(folder: str, step: int) -> CheckpointFolder:
    """Raise UsageError with the steps that there are."""
    steps = [entry.step for entry in _store(folder).entries()]
    named = ", ".join(map(str, steps[-NUM_NAMED:])) or "none"
    newest = "newest " if len(steps) > NUM_NAMED else ""
    raise UsageError(
        f"{folder} has no checkpoint of step {step}; its {newest}steps are {named}",
        hint=f"echelon checkpoint ls {folder}",
    )


def table(entries: list[CheckpointFolder]) -> str:
    lines = [("step", "time", "size", "ranks", "whole")]
    for entry in entries:
        manifest = entry.manifest
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.time)) if manifest else "–"
        reason = entry.finding.partition(": ")[2]
        ranks = str(manifest.num_ranks) if manifest else "–"
        whole = f"no: {reason}" if reason else "yes"
        lines.append((str(entry.step), written, size(_num_bytes(entry)) if manifest else "–", ranks, whole))
    return "\n".join(aligned(lines))


def _num_bytes(entry: CheckpointFolder) -> int:
    return entry.manifest.num_bytes if entry.manifest else 0


def _print_json(folder: str, entries: list[CheckpointFolder]) -> None:
    print_json(folder=folder, checkpoints=[_as_plain(entry) for entry in entries])


def _as_plain(entry: CheckpointFolder) -> dict[str, Any]:
    row: dict[str, Any] = {"step": entry.step, "path": entry.path, "whole": not entry.finding, "finding": entry.finding}
    if entry.manifest is not None:
        manifest = entry.manifest
        row |= {"time": manifest.time, "bytes": manifest.num_bytes, "ranks": manifest.num_ranks}
        row |= {"versions": manifest.versions, "about": manifest.about, "files": sorted(manifest.files)}
    return row
