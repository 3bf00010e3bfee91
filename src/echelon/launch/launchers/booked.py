"""Merge the resources of a launcher's line with the options of a job that is to be submitted."""

from __future__ import annotations

from echelon.errors import UsageError
from echelon.launch.launchers.line import Line
from echelon.launch.launchers.merge import started
from echelon.spec import ALL_NODES, Job


def sizes(job: Job, line: Line, *, num_devices: int, num_nodes: int) -> tuple[int, int]:
    """Return devices and nodes, with the line's numbers; 0 means not stated. Raise UsageError if they differ.

    `job` has the line's options; a rank has one device, so ranks are counted as devices.
    """
    _refuse_hosts(line)
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
            f"two numbers disagree: --gpus {num_devices}, but {line.launcher} {_words(line)} starts {_ranks(wanted)}",
            hint=f"--gpus {wanted}   or remove --gpus: the line gives the number",
        )
    return num_devices or wanted, nodes


def refuse_nodes_of_horovodrun(job: Job, num_nodes: int) -> None:
    """Raise UsageError for nodes that horovodrun would reach by ssh, before the job waits for them."""
    if job.launcher is not None and job.launcher.mpi == "horovodrun" and num_nodes > 1:
        raise UsageError(
            f"horovodrun reaches its {num_nodes} nodes by ssh, but echelon starts nothing by ssh",
            hint=f"without it, Horovod's ranks meet through echelon: echelon submit … {started(job.command)}",
        )


def _nodes(job: Job, line: Line, asked: int) -> int:
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


def _refuse_hosts(line: Line) -> None:
    if line.hosts:
        raise UsageError(
            f"{line.launcher} names {', '.join(line.hosts[:4])}{' …' if len(line.hosts) > 4 else ''}, but "
            "Slurm chooses the nodes of a job",
            hint=f"remove the hosts: echelon submit --nodes {len(line.hosts)} … -- {line.launcher} …",
        )


def _refuse_chosen_devices(line: Line) -> None:
    chosen = [name for name in line.devices.split(",") if name]
    if sorted(chosen) != sorted(str(number) for number in range(len(chosen))):
        raise UsageError(
            f"{line.launcher} chooses the devices {line.devices}, but Slurm chooses the devices of a job, and "
            "numbers them from 0",
            hint=f"remove the choice: echelon submit --gpus {len(chosen)} … -- {line.launcher} …",
        )


def _words(line: Line) -> str:
    """Return the words of the line that state numbers of ranks and nodes."""
    texts = [given.text for given in line.options if given.key in ("nnodes", "nproc_per_node")]
    return " ".join([*texts, *([line.num_ranks_text] if line.num_ranks_text else [])])


def _ranks(number: int) -> str:
    return f"{number} rank{'s' if number != 1 else ''}"
