"""Turn another launcher's command line after `--` into options of `echelon run`, and say so in one line."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from echelon.cli.options import OPTIONS, WE_MEET, Scanned
from echelon.spec import Job, Plan

if TYPE_CHECKING:
    from echelon.dialects.translate import LauncherLine


def with_launcher(scanned: Scanned) -> tuple[Scanned, LauncherLine | None]:
    """Merge a launcher's words into the command line; raise UsageError where the two disagree."""
    is_program = scanned.is_program or "no_python" in scanned.values
    if not is_program or not scanned.rest:
        return scanned, None
    from echelon.dialects import merge
    from echelon.dialects.translate import recognise

    line = recognise(scanned.rest)
    if line is None:
        return scanned, None
    values = merge.options({key: found for key, found in scanned.values.items() if key != "no_python"}, line)
    command = line.command
    rest = (command.target, *command.arguments)
    return Scanned(values=values, rest=rest, is_program=command.kind == "program"), line


def with_line(job: Job, line: LauncherLine) -> Job:
    """Return the job with the launcher's words that no option expresses; set the visible devices as a shell would."""
    from echelon.dialects import merge

    environ = line.environ
    if line.devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = line.devices
        if job.visible == "all":  # a step sets this variable anew, to all devices of the job
            environ = (*environ, ("CUDA_VISIBLE_DEVICES", line.devices))
    return replace(job, launcher=merge.launcher(line), environ=(*environ, *job.environ))


def _say_launcher(line: LauncherLine, plan: Plan) -> None:
    """Name the launcher that was recognised, and say how its ranks are started."""
    num_ranks = plan.num_nodes * plan.ranks_per_node
    ranks = f"its {num_ranks} ranks" if num_ranks > 1 else "its rank" if num_ranks else "its ranks"
    if plan.launcher is not None and plan.launcher.is_step:
        how = f"it starts {ranks} itself, each under an agent of echelon"
    else:
        how = f"srun --mpi={plan.mpi} starts {ranks}" if plan.mpi else f"echelon starts {ranks}"
    note = f"; {line.note}" if line.note else ""
    print(f"echelon: {line.launcher}: {how}{note}", file=sys.stderr)


def name_accepted(scanned: Scanned, plan: Plan, line: LauncherLine | None) -> None:
    """Name the launcher that was recognised, and list once the options that have no effect."""
    by_why: dict[str, list[str]] = {}
    if line is not None:
        _say_launcher(line, plan)
        for name, why in line.no_meaning:
            by_why.setdefault(why, []).append(name)
    if plan.where != "meet":
        said = {given.key: given.text.partition(" ")[0].partition("=")[0] for given in line.options} if line else {}
        for key in ("node_rank", "master_addr", "master_port", "rdzv_endpoint"):
            if key in scanned.values:
                by_why.setdefault(WE_MEET, []).append(said.get(key, "--" + key.replace("_", "-")))
    if (
        scanned.values.get("nproc_per_node", [""])[-1] in ("gpu", "xpu")
        and plan.where == "here"
        and not plan.devices_per_node
    ):
        print("echelon: note: this machine has no GPU, so echelon starts one rank", file=sys.stderr)
    for option in OPTIONS:
        if option.no_meaning and option.key in scanned.values:
            by_why.setdefault(option.no_meaning, []).append(option.names[-1])
    if by_why:
        parts = [f"{' '.join(names)} ({why})" for why, names in by_why.items()]
        print(f"echelon: without effect here: {'; '.join(parts)}", file=sys.stderr)
