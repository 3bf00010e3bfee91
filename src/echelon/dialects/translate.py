"""Translate other launchers' command lines into the words of `echelon run`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from echelon.dialects import accelerate, deepspeed, horovod, mpi, srun, torchrun
from echelon.dialects.accelerate import ask
from echelon.dialects.line import Given, LauncherLine, MpiStart, is_our_python

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner.launch": "horovodrun",
}
MPI = ("mpirun", "mpiexec", "orterun", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich",
       "mpiexec.mpich")  # fmt: skip
PROGRAMS = ("torchrun", "deepspeed", "horovodrun", "srun", *MPI)


def recognise(words: Sequence[str]) -> LauncherLine | None:
    """Return the Line of a launcher's command; None for any other. Raise UsageError if it is invalid."""
    name, arguments = _name(list(words))
    if name in ("torchrun", "torch.distributed.launch"):
        return torchrun.line(name, arguments)
    if name == "accelerate launch":
        return accelerate.line(name, arguments, ask)
    if name == "deepspeed":
        return deepspeed.line(name, arguments)
    if name == "horovodrun":
        return horovod.line(name, words[: len(words) - len(arguments)], arguments)
    if name == "srun":
        return srun.line(name, arguments, recognise)
    return mpi.line(name, words[0], arguments) if name in MPI else None


def _name(words: list[str]) -> tuple[str, list[str]]:
    """Return the launcher's name and its arguments; an empty name for any other command."""
    if not words:
        return "", []
    program = os.path.basename(words[0])
    if program == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate launch", words[2:]
    if program == "accelerate-launch":
        return "accelerate launch", words[1:]
    if program in ("deepspeed", "ds"):
        return "deepspeed", words[1:]
    if program in PROGRAMS:
        return program, words[1:]
    at = next((at for at in range(1, len(words)) if words[at] not in ("-u",)), 0)
    if is_our_python(words[0]) and words[at : at + 1] == ["-m"] and words[at + 1 : at + 2]:
        module = words[at + 1]
        if module == "accelerate.commands.accelerate_cli" and words[at + 2 : at + 3] == ["launch"]:
            return "accelerate launch", words[at + 3 :]
        return MODULES.get(module, ""), words[at + 2 :]
    return "", []


__all__ = ["MPI", "Given", "LauncherLine", "MpiStart", "recognise"]
