"""Record some steps of a rank with torch.profiler, without a change to the script."""

import atexit
import os
import sys
from collections.abc import Mapping
from typing import Any

from ..orders import profile
from ..pytorch import targets
from . import events, patches

WHY = "A profile begins and ends with a step of an optimizer."


def begin(environ: Mapping[str, str]) -> None:
    """Record the steps that the order asks of this rank, as soon as the script has imported PyTorch."""
    order = profile.read(environ)
    folder, rank = environ.get("ECHELON_RUN_DIR", ""), int(environ.get("RANK", "-1"))
    if order is None or not folder or not profile.has(order.ranks, rank):
        return
    path = os.path.join(folder, profile.FOLDER, profile.file_name(rank))
    if os.path.exists(path):
        return  # an earlier attempt of the run has made it
    recording = ProfileRecording(order, path)

    def install(_: object) -> None:
        gone = targets.changes("profile")
        if gone:
            sys.stderr.write(f"echelon: {targets.describe(gone)}; this rank is not profiled\n")
            return
        events.after_step.listen("profile", recording.after_step, why=WHY)

    patches.Hooks().when_imported(events.OPTIMIZERS, install, why=WHY)


class ProfileRecording:
    """Counts the steps of all optimizers, and records those of the order in one file."""

    def __init__(self, order: profile.ProfileOrder, path: str) -> None:
        self._order, self._path = order, path
        self._pid = os.getpid()
        self._num_steps = 0
        self._profiler: Any = None
        self._step: Any = None

    def after_step(self, *_: object) -> None:
        """Take the end of a step; a fork of the rank, such as the check of the first step, records nothing."""
        if os.getpid() != self._pid:
            return
        self._num_steps += 1
        first, last = self._order.first, self._order.last
        if not first - 2 <= self._num_steps <= last:
            return
        if self._profiler is None:
            self._prepare()
        if self._num_steps == first - 1:
            self._start()
        elif self._num_steps == last:
            self._end_step()
            self.finish()
        elif self._num_steps >= first:
            self._next_step()

    def _prepare(self) -> None:
        """Load the profiler a step before it records: on a GPU this takes seconds, for which other ranks wait."""
        from torch import profiler

        self._profiler = profiler.profile()
        self._profiler.prepare_trace()

    def _start(self) -> None:
        self._profiler.start_trace()
        atexit.register(self.finish)  # the script may end before the last step
        self._next_step()

    def _next_step(self) -> None:
        from torch.profiler import record_function

        self._end_step()
        self._step = record_function(f"ProfilerStep#{self._num_steps + 1}")
        self._step.__enter__()

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def finish(self) -> None:
        """Write the file, once; a step that has no end is marked as such in it."""
        if self._profiler is None or self._num_steps < self._order.first - 1 or os.getpid() != self._pid:
            return
        self._profiler.stop_trace()
        part = self._path[: -len(".json.gz")] + ".part.json.gz"
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            self._profiler.export_chrome_trace(part)
            os.chmod(part, 0o600)
            os.replace(part, self._path)
        except (OSError, RuntimeError) as error:  # a full disk ends no training
            sys.stderr.write(f"echelon: warning: the profile could not be written: {error}\n")
        self._profiler = None
