"""No option of echelon is taken for an option of Slurm or torchrun."""

import importlib
from collections.abc import Sequence
from dataclasses import fields

import pytest

from echelon.cli import COMMANDS
from echelon.cli.options import OPTIONS, Option, scan
from echelon.cli.resources import RESOURCES
from echelon.errors import UsageError
from echelon.lint.batch import names, names_of_steps
from echelon.orders.scale import ScaleOptions
from echelon.spec import Job, Request

from .shell import Shell

SLURMS = names() | names_of_steps()
TORCHRUNS = {name[2:] for option in OPTIONS for name in option.names if name.startswith("--")}


def tables() -> dict[str, Sequence[Option]]:
    """Return the options of each command that has a table of them."""
    modules = {name: importlib.import_module(f"echelon.cli.{name}") for name in COMMANDS}
    return {name: module.OPTIONS for name, module in modules.items() if hasattr(module, "OPTIONS")} | {"run": OPTIONS}


@pytest.mark.parametrize("command", tables())
def test_no_abbreviation_is_anothers_name(command: str) -> None:
    """A name that Slurm or torchrun has is ours by its whole name, or refused: --mem never means --mem-per-gpu."""
    table = tables()[command]
    ours = {name for option in table for name in option.names}
    for name in sorted((SLURMS | TORCHRUNS) - {long.lstrip("-") for long in ours}):
        with pytest.raises(UsageError, match=f"echelon has no option --{name}$"):
            scan([f"--{name}", "1"], table, command=command)


@pytest.mark.parametrize("command", ["plan", "submit"])
def test_names_of_slurm_mean_the_same(command: str) -> None:
    """Names from a batch script mean the same here."""
    line = ["--nodes", "2", "--gpus-per-node", "4", "--cpus-per-task", "7", "--mem", "200G", "--time", "30"]
    keys = {"nodes": ["2"], "gpus_per_node": ["4"], "cpus_per_task": ["7"], "mem": ["200G"], "time": ["30"]}
    assert scan(line, tables()[command], command=command).values == keys


def test_abbreviations_of_ours_are_understood() -> None:
    """A beginning that fits a single option stands for it, unless it is a name of Slurm or torchrun."""
    assert scan(["--max-rest", "2", "x.py"]).values == {"max_restarts": ["2"]}
    assert scan(["--nproc", "2", "x.py"]).values == {"nproc_per_node": ["2"]}


def test_cpus_of_each_rank(shell: Shell) -> None:
    """Two ranks with one CPU each have one thread each; more CPUs than there are is an error with both numbers."""
    shell.script("import os; print(os.environ['OMP_NUM_THREADS'])")
    done = shell.fork("--gpus-per-node", "2", "--cpus-per-task", "1", "--show", "all", "train.py")
    assert sorted(done.stdout.split(b"\n")) == [b"", b"[0] 1", b"[1] 1"], done.said
    refused = shell.fork("-n", "2", "--cpus-per-task", "4096", "train.py")
    assert refused.exit_code == 2
    assert "--cpus-per-task 4096: 2 ranks need 8192 CPUs, but " in refused.said


def test_time_is_slurms(shell: Shell) -> None:
    """One limit of time at a time; a limit in Slurm's words is in minutes."""
    shell.script("")
    refused = shell.fork("--time", "1", "--timeout", "60", "train.py")
    assert (refused.exit_code, "remove --timeout 60" in refused.said) == (2, True)
    assert b'"timeout_seconds": 1800' in shell.fork("--time", "30", "--dry-run", "--json", "train.py").stdout


def test_rows_fill_fields_that_exist() -> None:
    """A row names the field that its option sets: of a job, of the options of scaling, or of a request."""
    of_run = {each.name for each in fields(Job)} | set(ScaleOptions._fields)
    assert {row.fills for row in OPTIONS if row.fills} <= of_run
    assert {row.fills for row in RESOURCES if row.fills} <= {each.name for each in fields(Request)}
