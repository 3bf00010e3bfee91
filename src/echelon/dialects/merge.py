"""Merge a launcher's words into the options of `echelon run`, or into those of a job that is submitted."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from echelon.dialects.line import Given, LauncherLine
from echelon.errors import UsageError
from echelon.spec import ALL_NODES, Command, Job, Launcher
from echelon.units import counted

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


def options(own: Mapping[str, list[str]], line: LauncherLine) -> dict[str, list[str]]:
    """Return the options of `echelon run` with the launcher's added; raise UsageError if they disagree."""
    merged = {key: list(values) for key, values in own.items()}
    for option in line.options:
        said = merged.get(option.key, [""])[-1] if option.key in own else ""
        if option.key not in own or said in AUTOMATIC:
            merged[option.key] = [option.value]
        elif option.value not in AUTOMATIC and option.value != said:
            raise _disagreement(option, said, line)
    if "module" in own:
        raise UsageError(
            f"-m names a module, but {line.launcher} follows --: use only one of them",
            hint=f"echelon run -- {line.launcher} …",
        )
    kind = line.command.kind
    if kind == "module":
        merged["module"] = [""]
    if line.mpi is not None:
        _refuse_what_mpi_cannot(merged, line)
        merged["launch"] = ["tasks"]
        merged["scale"] = ["off"]
    return merged


def launcher(line: LauncherLine) -> Launcher:
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


def _disagreement(word: Given, said: str, line: LauncherLine) -> UsageError:
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


def _refuse_what_mpi_cannot(merged: Mapping[str, list[str]], line: LauncherLine) -> None:
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


def sizes(job: Job, line: LauncherLine, *, num_devices: int, num_nodes: int) -> tuple[int, int]:
    """Return devices and nodes, with the line's numbers; 0 means not stated. Raise UsageError if they differ.

    `job` has the line's options; a rank has one device, so ranks are counted as devices.
    """
    if line.hosts:
        raise UsageError(
            f"{line.launcher} names {', '.join(line.hosts[:4])}{' …' if len(line.hosts) > 4 else ''}, but "
            "Slurm chooses the nodes of a job",
            hint=f"remove the hosts: echelon submit --nodes {len(line.hosts)} … -- {line.launcher} …",
        )
    _refuse_chosen_devices(line)
    nodes = _nodes(job, line, num_nodes)
    per_node, total = job.ranks_per_node, line.num_ranks
    if per_node and not nodes:
        known = total or num_devices or per_node  # torchrun and deepspeed without --nnodes mean one node
        if known % per_node:
            number_text = line.num_ranks_text if total else f"--gpus {num_devices}"
            raise UsageError(
                f"{number_text} is not a multiple of the {per_node} ranks per node of {line.launcher} {_words(line)}",
                hint=f"--gpus {max(1, known // per_node) * per_node}",
            )
        nodes = known // per_node
    wanted = per_node * nodes if per_node else total
    if total and wanted != total:
        raise UsageError(
            f"{line.launcher}: {line.num_ranks_text} asks for {total} ranks in all, but {per_node} on each of "
            f"{nodes} nodes make {wanted}",
            hint=f"remove {line.num_ranks_text}, or set it to {wanted}",
        )
    if num_devices and wanted and num_devices != wanted:
        raise UsageError(
            f"two numbers disagree: --gpus {num_devices}, but {line.launcher} {_words(line)} starts "
            f"{counted(wanted, 'rank')}",
            hint=f"--gpus {wanted}   or remove --gpus: the line gives the number",
        )
    return num_devices or wanted, nodes


def refuse_nodes_of_horovodrun(job: Job, num_nodes: int) -> None:
    """Raise UsageError for nodes that horovodrun would reach by ssh."""
    if job.launcher is not None and job.mpi == "horovodrun" and num_nodes > 1:
        python = "" if job.command.kind == "program" else "python "
        raise UsageError(
            f"horovodrun reaches its {num_nodes} nodes by ssh, past echelon's agents",
            hint=f"without it: mpirun -n {job.launcher.num_ranks} {python}{started(job.command).removeprefix('-- ')}",
        )


def _nodes(job: Job, line: LauncherLine, asked: int) -> int:
    """Return the number of nodes, from the options or from the line; torchrun may accept a range."""
    most = job.num_nodes
    if most == ALL_NODES:
        return asked
    least = job.min_nodes if job.min_nodes != ALL_NODES else most
    if asked and not least <= asked <= most:
        text = next((given.text for given in line.options if given.key == "nnodes"), "")
        raise UsageError(
            f"two numbers of nodes disagree: --nodes {asked}, but {line.launcher} {text}",
            hint=f"--nodes {most}   or remove --nodes: the line gives the number",
        )
    return asked or most


def _refuse_chosen_devices(line: LauncherLine) -> None:
    chosen = [name for name in line.devices.split(",") if name]
    if sorted(chosen) != sorted(str(number) for number in range(len(chosen))):
        raise UsageError(
            f"{line.launcher} chooses the devices {line.devices}, but Slurm chooses the devices of a job, and "
            "numbers them from 0",
            hint=f"remove the choice: echelon submit --gpus {len(chosen)} … -- {line.launcher} …",
        )


def _words(line: LauncherLine) -> str:
    """Return the words of the line that state numbers of ranks and nodes."""
    texts = [given.text for given in line.options if given.key in ("nnodes", "nproc_per_node")]
    return " ".join([*texts, *([line.num_ranks_text] if line.num_ranks_text else [])])
