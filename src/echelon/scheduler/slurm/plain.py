"""The body of a batch script that runs without echelon, as guides teach it, with their errors corrected."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence

from echelon.scheduler.slurm.batch import Heading, bill, cpus_per_task, directives, one_line
from echelon.spec import Booking, Variable

COMMENT_WIDTH = 100
_NEEDLESS_ALONE = frozenset({"--ntasks-per-node", "--chdir", "--open-mode"})  # Slurm's defaults for a single task
_BETWEEN_RANKS = ("NCCL_", "RCCL_", "FI_", "CXI_", "UCX_")  # network settings, which a single rank does not use
STARTERS = {"torchrun": "one torchrun a node, which starts the ranks", "tasks": "one task a rank"}
_PLACES = {"{user}": "$USER", "{job_id}": "$SLURM_JOB_ID", "{node_rank}": "$SLURM_NODEID"}


def body(
    booking: Booking,
    layout: str,
    command: Sequence[str],
    *,
    prefix: Sequence[str] = (),
    modules: Sequence[str] = (),
    environ: Sequence[tuple[str, str]] = (),
) -> list[str]:
    """Return the lines after the options; `command` is the command of each rank after its Python.

    `prefix` starts a container, in which neither Slurm's commands nor its own variables are needed.
    """
    before = [*modules, *[f"export {name}={shlex.quote(value)}" for name, value in environ]]
    lines = [*before, *([""] if before else [])]
    lines += _meeting()
    if layout == "torchrun":
        return [*lines, *_per_node(booking, command, prefix)]
    return [*lines, *_per_rank(booking, command, prefix)]


def alone(
    booking: Booking,
    heading: Heading,
    command: Sequence[str],
    *,
    prefix: Sequence[str] = (),
    modules: Sequence[str] = (),
    environ: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the whole script of a single rank: it needs no meeting, no binding and no separate caches."""
    rows = [row for row in directives(booking, heading, tasks_per_node=1) if row.option not in _NEEDLESS_ALONE]
    kept = [row for row in booking.variables if not row.is_folder and not row.name.startswith(_BETWEEN_RANKS)]
    setup = [
        *modules,
        *(f"export {row.name}={shlex.quote(row.value)}" for row in kept),
        *(f"export {name}={shlex.quote(value)}" for name, value in environ),
    ]
    if booking.cores_per_rank:
        setup.append("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK")  # Slurm 22.05 and later do not set it
    return "\n".join(
        [
            "#!/bin/bash",
            f"# made by: {one_line(heading.made_by)}",
            *bill(booking),
            *(f"#SBATCH {row.text}" for row in rows),
            "",
            *setup,
            shlex.join(["srun", *prefix, "python", *command]),
            "",
        ]
    )


def tasks_per_node(booking: Booking, layout: str) -> int:
    return 1 if layout == "torchrun" else booking.ranks_per_node


def _meeting() -> list[str]:
    return [
        "# Ranks meet on the first node, at a port that jobs which share a node do not share.",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
        "export MASTER_ADDR MASTER_PORT",
        "",
    ]


def _per_node(booking: Booking, command: Sequence[str], prefix: Sequence[str]) -> list[str]:
    threads = booking.cores_per_rank
    starts = [
        f"torchrun --nnodes={booking.num_nodes} --nproc-per-node={booking.ranks_per_node} \\",
        '  --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"',
    ]
    inner = [*_settings(booking.variables, threads), "exec " + starts[0], starts[1]]
    srun = f"srun --nodes={booking.num_nodes} --ntasks={booking.num_nodes} --ntasks-per-node=1"
    return _step(srun, booking, inner, command, prefix, tasks_per_node=1, binding="--cpu-bind=none")


def _per_rank(booking: Booking, command: Sequence[str], prefix: Sequence[str]) -> list[str]:
    ranks = booking.ranks_per_node
    inner = [
        *_settings(booking.variables, booking.cores_per_rank),
        "# Slurm’s numbers under the names that PyTorch reads",
        "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID",
        f"export LOCAL_WORLD_SIZE={ranks} NODE_RANK=$SLURM_NODEID GROUP_RANK=$SLURM_NODEID",
        'exec python "$@"',
    ]
    srun = f"srun --nodes={booking.num_nodes} --ntasks={booking.world_size} --ntasks-per-node={ranks}"
    return _step(srun, booking, inner, command, prefix, tasks_per_node=ranks, binding=_binding(booking))


def _binding(booking: Booking) -> str:
    if not booking.core_map:
        return ""
    masks = ",".join(f"{sum(1 << core for core in cores):#x}" for cores in booking.core_map)
    return f"--cpu-bind=mask_cpu:{masks}"


def _step(
    srun: str,
    booking: Booking,
    inner: Sequence[str],
    command: Sequence[str],
    prefix: Sequence[str],
    *,
    tasks_per_node: int,
    binding: str,
) -> list[str]:
    """Return the step: `bash -c` reads the variables of each task, which the batch script lacks."""
    lines = [srun + " \\"]
    if booking.cores_per_rank:
        # since Slurm 22.05 a step does not inherit the cores per task of its job
        cpus = cpus_per_task(booking, tasks_per_node)
        lines.append(f"  --cpus-per-task={cpus} {binding}".rstrip() + " \\")
    elif binding:
        lines.append(f"  {binding} \\")
    if booking.core_map and binding.startswith("--cpu-bind=mask"):
        lines.insert(0, "# The masks put each rank on the cores that are nearest to its device.")
    if prefix:
        lines.append(f"  {shlex.join(prefix)} \\")
    text = "".join(f"\n    {line}" for line in inner) + "\n  "
    lines.append(f"  bash -c {shlex.quote(text)} rank {shlex.join(command)}")
    return lines


def _settings(variables: Sequence[Variable], threads: int) -> list[str]:
    """Return the exports with their reasons; the user's own values stay."""
    lines = []
    if threads:
        lines += ["# threads of one rank", f"export OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{threads}}}"]
    for variable in variables:
        value = variable.value
        for place, text in _PLACES.items():
            value = value.replace(place, text)
        lines += [f"# {line}" for line in textwrap.wrap(_comment(variable.why), COMMENT_WIDTH)]
        lines.append(f'export {variable.name}="${{{variable.name}:-{value}}}"')
    folders = [variable.name for variable in variables if variable.is_folder]
    if folders:
        lines += [
            "# A folder that another user has made is not used: the code in it would run as you.",
            f"for name in {' '.join(folders)}; do",
            '  mkdir -p -m 700 "${!name}"',
            '  [ -O "${!name}" ] && [ ! -L "${!name}" ] || unset "$name"',
            "done",
        ]
    return lines


def _comment(why: str) -> str:
    """Replace apostrophes in a comment: they would end the quotes around it."""
    return why.replace("'", "’")
