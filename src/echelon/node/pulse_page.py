"""The agent's side of a rank's pulse: count its steps, and ask it for its stacks."""

import json
import math
import os
import time
from typing import Any, Dict, List, Optional, Tuple

from . import call_page, frames, line_sampler, processes, pulse, secret

DUMP_BYTES = 1 << 20
ANSWER_SECONDS = 2.0
_STILL_SECONDS = 0.1  # a dump that has not grown for so long is complete


class PulsePage:
    """The shared file of one rank."""

    def __init__(self) -> None:
        self.descriptor = secret.new_file("echelon-pulse")
        os.ftruncate(self.descriptor, pulse.PAGE_BYTES)
        self._words = pulse.words(self.descriptor)
        self._file = os.fstat(self.descriptor).st_ino

    @property
    def steps(self) -> int:
        return int(self._words[pulse.STEPS])

    @property
    def first_at(self) -> float:
        """When the first step ended, in seconds since 1970; 0 before that."""
        return self._time(pulse.FIRST_AT)

    @property
    def last_at(self) -> float:
        """When the last step ended, in seconds since 1970; 0 before the first."""
        return self._time(pulse.LAST_AT)

    def _time(self, word: int) -> float:
        nanoseconds = int(self._words[word])
        return time.time() - time.monotonic() + nanoseconds / 1e9 if nanoseconds else 0.0

    def times(self) -> Dict[int, int]:
        """Return how many steps took the time of each bucket."""
        counts = self._words[pulse.TIMES : pulse.TIMES + pulse.NUM_BUCKETS].tolist()
        return {number: count for number, count in enumerate(counts) if count}

    def measures(self) -> Dict[str, float]:
        """Return what the rank has measured since its first step; without what it does not know."""
        if not self._words[pulse.MEASURED]:
            return {}
        behind = pulse.MEASURED + 1
        values = self._words[behind : behind + len(pulse.MEASURES)].cast("B").cast("d").tolist()
        return {name: value for name, value in zip(pulse.MEASURES, values) if not math.isnan(value)}  # noqa: B905

    def called(self, most_calls: int) -> Dict[str, Any]:
        """Return the last collectives of the rank, also after its end; empty without any."""
        return call_page.read(os.pread(self.descriptor, call_page.END, 0), most_calls)

    def crash(self) -> List[frames.Frame]:
        """Return the stack in which a fatal signal has ended the rank; empty if it wrote none."""
        size = os.fstat(self.descriptor).st_size
        begin = max(pulse.PAGE_BYTES, size - DUMP_BYTES)
        dump = os.pread(self.descriptor, max(0, size - begin), begin).decode("utf-8", "replace")
        _, is_there, text = dump.rpartition(pulse.CRASH)
        threads = frames.parse(text) if is_there else []
        return threads[0].frames if threads else []

    def notes(self) -> List[Dict[str, Any]]:
        """Return what the rank says of bad steps."""
        size, begin = min(int(self._words[pulse.NOTES]), pulse.MOST_NOTES_BYTES), (pulse.NOTES + 1) * 8
        try:
            notes: List[Dict[str, Any]] = json.loads(bytes(self._words.cast("B")[begin : begin + size]) or b"[]")
        except ValueError:
            return []  # it is being written
        return notes

    def lines(self) -> Optional[List[Tuple[str, line_sampler.StackPlace, line_sampler.Times]]]:
        """Return in which lines of the script the rank was; None if it has not told yet."""
        return line_sampler.read(self._words.cast("B"))

    def ask(self, pid: int) -> Tuple[List[frames.Thread], str]:
        """Return the threads of the rank or of one of its forks, or the reason why not."""
        held = int(self._words[pulse.DESCRIPTOR]) - 1
        if held < 0 or not self._holds(pid, held) or not processes.catches(pid, pulse.SIGNAL):
            return [], "it is no Python that echelon has started"
        begin = os.lseek(self.descriptor, 0, os.SEEK_END)
        os.lseek(self.descriptor, begin, os.SEEK_SET)  # both processes share the position
        try:
            os.kill(pid, pulse.SIGNAL)
        except OSError:
            return [], "it has ended"
        threads = frames.main_first(frames.parse(self._read(begin)), int(self._words[pulse.MAIN_THREAD]))
        return threads, "" if threads else "it does not answer"

    def _holds(self, pid: int, number: int) -> bool:
        """Say whether the rank still has the file: a script may close descriptors that it does not know."""
        try:
            return os.stat("/proc/%d/fd/%d" % (pid, number)).st_ino == self._file
        except OSError:
            return False

    def _read(self, begin: int) -> str:
        deadline = time.monotonic() + ANSWER_SECONDS
        size, since = begin, time.monotonic()
        while time.monotonic() < deadline:
            now = os.fstat(self.descriptor).st_size
            if now != size:
                size, since = now, time.monotonic()
            elif size > begin and time.monotonic() - since >= _STILL_SECONDS:
                break
            time.sleep(0.02)
        return os.pread(self.descriptor, min(size - begin, DUMP_BYTES), begin).decode("utf-8", "replace")

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
