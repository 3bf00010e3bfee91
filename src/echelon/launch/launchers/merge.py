"""Merge a launcher's words into the options of `echelon run`; if the two disagree, nothing is started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from echelon.errors import UsageError
from echelon.launch.launchers.line import Given, Line
from echelon.spec import Command, Launcher

AUTOMATIC = ("", "auto", "gpu", "xpu")
"""Values that leave the number of ranks to the machine; a stated number wins over these."""
_WHAT = {
    "nproc_per_node": "ranks per node",
    "nnodes": "nodes",
    "max_restarts": "restarts",
    "visible": "as devices of a rank",
    "node_rank": "as this node's number",
}
_SAID = {"nproc_per_node": "-n"}


def options(own: Mapping[str, list[str]], line: Line) -> dict[str, list[str]]:
    """Return the options of `echelon run` with the launcher's added; raise UsageError if they disagree."""
    merged = {key: list(values) for key, values in own.items()}
    for option in line.options:
        said = merged.get(option.key, [""])[-1] if option.key in own else ""
        if option.key not in own or said in AUTOMATIC:
            merged[option.key] = [option.value]
        elif option.value not in AUTOMATIC and option.value != said:
            raise _disagreement(option, said, line)
    _refuse_other_command(own, line)
    kind = line.command.kind
    if kind == "module":
        merged["module"] = [""]
    if line.mpi is not None:
        _refuse_what_mpi_cannot(merged, line)
        merged["launch"] = ["tasks"]
        merged["scale"] = ["off"]
    return merged


def launcher(line: Line) -> Launcher:
    """Return the parts of the line that no option of `echelon run` expresses."""
    return Launcher(
        name=line.launcher,
        num_ranks=line.num_ranks,
        num_ranks_text=line.num_ranks_text,
        hosts=line.hosts,
        rank_argument=line.rank_argument,
        mpi=line.mpi.kind if line.mpi is not None else "",
        words=line.mpi.words if line.mpi is not None else (),
    )


def _disagreement(word: Given, said: str, line: Line) -> UsageError:
    option = _SAID.get(word.key, "--" + word.key.replace("_", "-"))
    meaning = _WHAT.get(word.key, "")
    return UsageError(
        f"two launchers disagree: echelon run {option} {said} asks for {said}{' ' + meaning if meaning else ''}, but "
        f"{line.launcher} {word.text} asks for {word.value}",
        hint=f"echelon run -- {line.launcher} {word.text} …   or: echelon run {option} {said} {started(line.command)}",
    )


def started(command: Command) -> str:
    """Return a command as the end of an `echelon run` line, shortened."""
    mark = {"module": ["-m"], "program": ["--"]}.get(command.kind, [])
    more = " …" if command.arguments else ""
    return shlex.join([*mark, command.target]) + more


def _refuse_other_command(own: Mapping[str, Sequence[str]], line: Line) -> None:
    if "module" in own:
        raise UsageError(
            f"-m names a module, but {line.launcher} follows --: use only one of them",
            hint=f"echelon run -- {line.launcher} …",
        )


def _refuse_what_mpi_cannot(merged: Mapping[str, list[str]], line: Line) -> None:
    how = merged.get("launch", ["tasks"])[-1]
    if how != "tasks":
        raise UsageError(
            f"--launch {how}: {line.launcher} starts ranks of MPI, each separately", hint="remove --launch"
        )
    restarts = merged.get("max_restarts", ["0"])[-1]
    if restarts != "0":
        raise UsageError(
            f"--max-restarts {restarts}: the same {line.launcher} cannot start MPI's ranks again",
            hint="remove it, and submit the job again after a failure",
        )
    scale = merged.get("scale", ["auto"])[-1]
    if scale not in ("auto", "off"):
        raise UsageError(
            f"--scale {scale}: a script that {line.launcher} starts distributes its work itself",
            hint=f"echelon run --scale {scale} {started(line.command)}",
        )
