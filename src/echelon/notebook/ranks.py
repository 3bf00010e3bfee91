"""Run text as a script on several ranks, from a process that goes on: show its output, and fetch its variables."""

from __future__ import annotations

import codecs
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any, TextIO

from echelon.errors import RunError, UsageError
from echelon.host import Host, own_command
from echelon.launch.prepare import EARLIER_IMPORTS
from echelon.orders import codec, fetch
from echelon.script import reading
from echelon.spec import Command, Job

_imports: list[str] = []  # what the scripts of this process have imported so far


class RanksFailed(RunError):
    """A run ended with another exit code than 0; its output was shown."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"the run ended with exit code {exit_code}; its output is above")
        self.exit_code = exit_code

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback, which would be of this process and not of a rank."""
        return [f"echelon: {self.message}"]


def run(text: str, options: Sequence[str], arguments: Sequence[str] = (), names: Sequence[str] = ()) -> dict[str, Any]:
    """Run a script with these options of `echelon run`; return the variables of rank 0 that `names` name.

    The script lies in the current folder while it runs, so that it imports what lies beside it. Raises RanksFailed if
    it fails, KeyboardInterrupt after an interrupt has ended it, and UsageError for a variable that cannot be fetched.
    """
    with tempfile.TemporaryDirectory(prefix="echelon-fetch-") as folder:
        order = fetch.FetchOrder(tuple(names), os.path.join(folder, "values"))
        path, file = _new_script()
        try:
            with file:
                file.write(text)
            script = reading.of_job(Job(command=Command(kind="script", target=path)))
            _imports.extend(name for name in (script.imports.preload if script else ()) if name not in _imports)
            environ = {**os.environ, EARLIER_IMPORTS: ",".join(_imports)}
            if names:
                environ[fetch.VARIABLE] = codec.write(order)
            exit_code = _shown([*own_command.ending_with_parent(), "run", *options, path, *arguments], environ)
        finally:
            if os.path.exists(path):
                os.unlink(path)
        if exit_code:
            raise RanksFailed(exit_code)
        return _fetched(order) if names else {}


def _new_script() -> tuple[str, IO[str]]:
    """Return the path of a script in this folder, and the file: one path for all, so that a pool serves them.

    While it is taken, by a run of another thread, it is the next free one.
    """
    number = 0
    while True:
        path = f".cell-{os.getpid()}{f'-{number}' if number else ''}.py"
        try:
            return path, open(path, "x", encoding="utf-8")
        except FileExistsError:
            number += 1
        except OSError as error:
            raise UsageError(
                f"the script of the cell cannot be written into {os.getcwd()}: {error.strerror}",
                hint="%cd into a folder of your own",
            ) from None


def _shown(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command and show its output as it comes; an interrupt ends it as Ctrl-C does, and is raised again."""
    process = Host().start(words, environ=environ)
    reader = threading.Thread(target=_copy, args=(process.stdout, sys.stdout), daemon=True)
    reader.start()
    is_interrupted = False
    while reader.is_alive() or process.poll() is None:
        try:
            reader.join(1.0)
        except KeyboardInterrupt:
            is_interrupted = True
            process.send_signal(signal.SIGINT)
    if is_interrupted:
        raise KeyboardInterrupt
    return process.wait()


def _copy(stream: IO[bytes] | None, target: TextIO) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while stream is not None and (data := os.read(stream.fileno(), 1 << 16)):
        target.write(decoder.decode(data))
        target.flush()


def _fetched(order: fetch.FetchOrder) -> dict[str, Any]:
    """Return the values that rank 0 has written; raise UsageError if one of them could not be."""
    try:
        with open(order.path + fetch.FACTS, encoding="utf-8") as file:
            facts = json.load(file)
        with open(order.path, "rb") as values_file:
            content = values_file.read()
    except OSError:
        raise UsageError(
            f"rank 0 has written no values of {', '.join(order.names)}: it ended in a way of its own, as by os._exit()",
            hint="let the script end by itself",
        ) from None
    if facts["problems"]:
        name, why = next(iter(facts["problems"].items()))
        raise UsageError(
            f"{name} cannot be fetched: {why}", hint="--fetch takes numbers, text, lists, dicts, tensors and modules"
        )
    if not facts["has_tensors"]:
        return dict(json.loads(content))
    from echelon.train.wire import plain_data

    return dict(plain_data.decode(content))
