"""Start `echelon run` once more and wait for it, as `echelon prove` and `echelon rehearse` do."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from echelon.errors import UsageError
from echelon.host import Finished, Host, own_command
from echelon.orders.scale import OBSERVE, VARIABLE, ScaleOptions
from echelon.spec import Command

if TYPE_CHECKING:
    from echelon.script.imports import Imports

STOP_SECONDS = 60.0
DRY_RUN_SECONDS = 3600.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedScript:
    """A script that is run several times."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
    options: tuple[str, ...]
    """Of `echelon run`, for every run."""

    @property
    def command(self) -> tuple[str, ...]:
        return self.command_of(self.script)

    def command_of(self, target: str) -> tuple[str, ...]:
        """Return the same with a copy of the script."""
        return (*(["-m"] if self.is_module else []), target, *self.arguments)


def imports_of(script: str, *, is_module: bool, command: str) -> Imports:
    """Return what a script imports; raise UsageError, whose hint names the command, if there is no such script."""
    from echelon.script.reading import ScriptReading

    try:
        return ScriptReading(Command(kind="module" if is_module else "script", target=script)).imports
    except UsageError as error:
        raise _as_of(command, error.message, error.details, error.hint) from None


def refuse_what_cannot_run(host: Host, words: Sequence[str], *, command: str, verb: str = "run") -> str:
    """Raise UsageError, before anything is started, for words that `echelon run`, or another verb, will not accept.

    `command` is the name of the command that the user gave; the hint names it instead of the verb. Returns what the
    dry run printed.
    """
    done = host.ask([*own_command.command(), verb, "--dry-run", *words], timeout_seconds=DRY_RUN_SECONDS)
    if done.exit_code:
        told, _, hint = done.stderr.strip().removeprefix("echelon: error: ").partition("\n  hint: ")
        message, _, details = told.partition("\n")
        raise _as_of(command, message, details, hint, verb=verb)
    return done.stdout


def without_logs(report: str) -> str:
    """Return the report of a failed run without where its logs are: they are removed with all else."""
    lines = report.rstrip().splitlines()
    return "\n".join(line for line in lines if not re.match(r"  log: |echelon: .* · run ", line))


def _as_of(command: str, message: str, details: str, hint: str, *, verb: str = "run") -> UsageError:
    return UsageError(message, details=details, hint=hint.replace(f"echelon {verb}", f"echelon {command}"))


def variables(values: Mapping[str, str], *, observes: bool) -> list[str]:
    """Return the options that set variables in all ranks; a script that distributes itself is only observed."""
    observed = {VARIABLE: ScaleOptions(how=OBSERVE).to_json()} if observes else {}
    return [word for name, value in {**values, **observed}.items() for word in ("--env", f"{name}={value}")]


def finish(host: Host, words: Sequence[str], *, folder: str = "", verb: str = "run") -> Finished:
    """Run `echelon run`, or another verb, to its end, in `folder` or the current one; stdout has its errors too.

    Where we are ended, end it first and wait for it: its ranks write into our folder.
    """
    process = host.start([*own_command.command(), verb, *words], environ=host.environ, folder=folder)
    try:
        output = process.communicate()[0]
    except BaseException:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=STOP_SECONDS)
        finally:
            process.kill()
        raise
    return Finished(exit_code=process.returncode, stdout=os.fsdecode(output), stderr="")
