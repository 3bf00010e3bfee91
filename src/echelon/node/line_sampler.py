"""Know in which line of the script a rank spends its time: a thread looks at the main thread's frames.

Each look adds the time since the last one to a row: the script's innermost line, the part of a step that PyTorch does
for it, and how long the main thread used a core meanwhile. The rows are written into the rank's page, at most once a
second, so that its agent reads them without asking the rank. The thread can not look during a garbage collection, so
Python itself tells how long that took.
"""

import _thread
import atexit
import gc
import os
import signal
import struct
import sys
import time
from itertools import islice
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from . import frames

AT, BYTES = 1 << 14, 1 << 15
"""Where the rows stand in the page of a pulse."""
LOOK_SECONDS, WRITE_SECONDS = 0.05, 1.0
_GOLDEN = 0.618  # parts of the pause that differ from look to look, so that it is no multiple of a step
BEFORE, STEPS, AFTER = "before", "steps", "after"
"""Before the end of the first step; between the first step and the last one; after the last step so far."""
MOST_ROWS = 64
_MOST_KNOWN = 4096  # codes and their places; a compiler makes ever new ones
_LEAST_COLLECTION = 0.001  # seconds; a shorter one is part of its line
_STOP_SECONDS = 0.5
_HEAD = struct.Struct("=QQ")  # the number of the writing, which also stands behind the rows, and their bytes
_MOST_PATH = 200


class StackPlace(NamedTuple):
    """A line of the script, and what it does; without a file it is all other lines."""

    part: str
    file: str
    line: int
    span: Tuple[int, int, int]
    """The last line, the first column and the one behind the last of the call, in bytes; zeros before Python 3.11."""


OTHERS = StackPlace("", "", 0, (0, 0, 0))
Times = List[float]
"""The seconds of a row, those in which the main thread used a core, and the looks."""


_AROUND = {frames.IMPORTING: "", frames.OPTIMIZER: "", frames.BACKWARD: frames.IN_BACKWARD}
"""What parts are to the script's lines inside of them: an import runs the script, an optimizer its closure."""


class LineSampler:
    """Looks at the thread that makes it."""

    def __init__(self, descriptor: int) -> None:
        self.steps = 0
        """The optimizer steps so far; whoever counts them sets it."""
        self._descriptor = descriptor
        self._file = os.fstat(descriptor).st_ino
        self._main = _thread.get_ident()
        self._clock = -1
        self._codes: Dict[Any, Tuple[bool, str]] = {}
        self._places: Dict[Tuple[Any, int, str], StackPlace] = {}
        self._rows: Dict[str, Dict[StackPlace, Times]] = {BEFORE: {}, STEPS: {}, AFTER: {}}
        self._seen_steps = self._num_writings = 0
        self._now = OTHERS
        self._last = self._last_used = self._collected = self._began = 0.0
        self._is_wanted = False
        self._wake = _thread.allocate_lock()
        self._is_running = _thread.allocate_lock()

    def begin(self) -> None:
        """Look from now on, in this process alone; a fork stops the thread, and what follows it starts it again."""
        if not hasattr(time, "pthread_getcpuclockid"):
            return  # not Linux
        self._clock = time.pthread_getcpuclockid(self._main)
        self._is_wanted = True
        gc.callbacks.append(self._note_collection)
        os.register_at_fork(before=self._stop, after_in_child=self._leave)
        atexit.register(self._end)
        self._wake.acquire()
        self.resume()

    def resume(self) -> None:
        """Start the thread if it does not run; no signal of the process is delivered to it."""
        if not self._is_wanted or not self._is_running.acquire(blocking=False):
            return
        self._last, self._last_used = time.monotonic(), time.clock_gettime(self._clock)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            _thread.start_new_thread(self._look_until_stopped, ())
        except RuntimeError:  # no more threads are allowed, or the interpreter ends
            self._is_wanted = False
            self._is_running.release()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _stop(self) -> None:
        """End the thread before a fork: Python 3.12 warns of forks of a process with several threads."""
        if self._is_running.locked() and self._wake.locked():
            self._wake.release()
            if self._is_running.acquire(timeout=_STOP_SECONDS):
                self._is_running.release()

    def _leave(self) -> None:
        self._is_wanted = False
        gc.callbacks[:] = [each for each in gc.callbacks if each != self._note_collection]

    def _end(self) -> None:
        """Write what the last second has added; after this function Python takes its modules apart."""
        self._stop()
        if self._is_wanted and not self._is_running.locked():
            self._leave()
            try:
                self._write()
            except OSError:
                pass  # the script has closed what it has not opened

    def _look_until_stopped(self) -> None:
        written = self._last
        try:
            pause, cores = 0.5, os.sched_getaffinity(0)
            while not self._wake.acquire(timeout=LOOK_SECONDS * (0.5 + pause)):  # leaves it locked for the next stop
                pause = (pause + _GOLDEN) % 1
                cores = _follow(cores)
                now = _without_collections(self._look)
                if now - written >= WRITE_SECONDS:
                    written = now
                    self._write()
        except Exception:  # noqa: BLE001  # the script must not see a mistake of the thread
            self._is_wanted = False
        self._is_running.release()

    def _look(self) -> float:
        """Add the time since the last look to the line in which the main thread is."""
        now, used = time.monotonic(), time.clock_gettime(self._clock)
        if self._began:  # the main thread has yet to count the collection from which it comes
            used, now = used - (now - self._began), self._began
        seconds = max(0.0, now - self._last - self._collected)
        on_core = min(seconds, max(0.0, used - self._last_used - self._collected))
        self._last, self._last_used, self._collected = now, used, 0.0
        place = self._now = self._place_of(sys._current_frames().get(self._main))
        if self.steps != self._seen_steps:
            self._end_steps()
        _add(self._rows[AFTER if self._seen_steps else BEFORE], place, seconds, on_core)
        return now

    def _end_steps(self) -> None:
        """Count what was seen since the last step for the step that has ended now; the first one ends the begin."""
        if self._seen_steps:
            for place, times in self._rows[AFTER].items():
                _add(self._rows[STEPS], place, *times)
            self._rows[AFTER] = {}
        self._seen_steps = self.steps

    def _place_of(self, frame: Any) -> StackPlace:
        """Return the script's innermost line and the innermost part of a step; compiling goes before others."""
        part, own, position = "", None, 0
        while frame is not None:
            code = frame.f_code
            known = self._codes.get(code)
            if known is None:
                known = self._codes[code] = self._learn(code)
            is_own, name = known
            if name and (not part or name == frames.COMPILING):
                part = _AROUND.get(name, name) if own else name
            if is_own and own is None:
                own, position = frame, frame.f_lasti
            frame = frame.f_back
        return OTHERS._replace(part=part) if own is None else self._place(own, position, part)

    def _learn(self, code: Any) -> Tuple[bool, str]:
        if len(self._codes) > _MOST_KNOWN:
            self._codes.clear()
            self._places.clear()
        return frames.is_own(code.co_filename), frames.known(code.co_filename, code.co_name)[1]

    def _place(self, frame: Any, position: int, part: str) -> StackPlace:
        key = (frame.f_code, position, part)
        place = self._places.get(key)
        if place is None:
            if len(self._places) > _MOST_KNOWN:
                self._places.clear()
            path = frame.f_code.co_filename[-_MOST_PATH:].replace("\t", " ").replace("\n", " ")
            place = StackPlace(part, path, _line_at(frame, position), _span(frame.f_code, position))
            self._places[key] = place
        return place

    def _note_collection(self, phase: str, _: Any) -> None:
        """Count a garbage collection of the main thread for the script's line that has caused it."""
        try:
            if _thread.get_ident() != self._main:
                return
            if phase == "start":
                self._began = time.monotonic()
            else:
                self._count_collection()
        except Exception:  # noqa: BLE001  # the interpreter ends, and has taken modules away already
            self._is_wanted = False

    def _count_collection(self) -> None:
        seconds, self._began = time.monotonic() - self._began, 0.0
        self.resume()
        if seconds < _LEAST_COLLECTION:
            return
        place = self._place_of(sys._getframe(2))._replace(part=frames.COLLECTING)
        self._collected += seconds
        _add(self._rows[AFTER if self._seen_steps else BEFORE], place, seconds, seconds)

    def _write(self) -> None:
        """Write all rows, if the page is still this descriptor's file: a script may have closed it."""
        if os.fstat(self._descriptor).st_ino != self._file:
            self._is_wanted = False
            return
        text = _without_collections(self._text)
        self._num_writings += 1
        number = self._num_writings
        os.pwrite(self._descriptor, _HEAD.pack(number, len(text)) + text + _HEAD.pack(number, 0), AT)

    def _text(self) -> bytes:
        lines = [_line("now", self._now, (0.0, 0.0, 0))]
        for phase, rows in self._rows.items():
            _shorten(rows)
            lines += [_line(phase, place, times) for place, times in list(rows.items())]
        text = b"\n".join(lines)
        most = BYTES - 2 * _HEAD.size
        return text if len(text) <= most else text[: text.rfind(b"\n", 0, most)]


def _follow(cores: Set[int]) -> Set[int]:
    """Let this thread run where the main thread may run, if a script has bound that anew; return these cores."""
    now = os.sched_getaffinity(os.getpid())
    if now != cores:
        os.sched_setaffinity(0, now)
    return now


def _without_collections(act: Callable[[], Any]) -> Any:
    """Call a function whose objects cause no garbage collection: finalizers would run in this thread."""
    if not gc.isenabled():
        return act()
    gc.disable()
    try:
        return act()
    finally:
        gc.enable()


def _add(rows: Dict[StackPlace, Times], place: StackPlace, seconds: float, on_core: float, looks: float = 1) -> None:
    times = rows.get(place)
    if times is None:
        rows[place] = [seconds, on_core, looks]
    else:
        times[0] += seconds
        times[1] += on_core
        times[2] += looks


def _shorten(rows: Dict[StackPlace, Times]) -> None:
    """Merge the smallest rows of too many into the one of other lines."""
    if len(rows) > MOST_ROWS:
        for place in sorted(rows, key=lambda place: rows[place][0])[: len(rows) - MOST_ROWS // 2]:
            if place.file:
                _add(rows, OTHERS, *rows.pop(place))


def _line(phase: str, place: StackPlace, times: Any) -> bytes:
    part, file, line, span = place
    seconds, on_core, looks = times
    row = "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%.3f\t%.3f\t%d" % (phase, part, file, line, *span, seconds, on_core, looks)
    return row.encode("utf-8", "replace")


def _line_at(frame: Any, position: int) -> int:
    """Return the line of a frame; an instruction that has none, such as a jump back, belongs to the one before it."""
    if frame.f_lineno:
        return int(frame.f_lineno)
    before = [line for start, _, line in frame.f_code.co_lines() if line and start <= position]
    return int(before[-1]) if before else int(frame.f_code.co_firstlineno)


def _span(code: Any, position: int) -> Tuple[int, int, int]:
    """Return where the call of an instruction stands in its line."""
    positions = getattr(code, "co_positions", None)
    span = next(islice(positions(), position // 2, None), None) if positions is not None else None
    if span is None or None in span[1:]:
        return (0, 0, 0)
    return span[1:]  # type: ignore[no-any-return]


def read(page: "memoryview") -> Optional[List[Tuple[str, StackPlace, Times]]]:
    """Return the rows of a page, each with its phase, the first with "now"; None if they are being written."""
    number, size = _HEAD.unpack_from(page, AT)
    behind = AT + _HEAD.size + size
    if not number or size > BYTES - 2 * _HEAD.size or _HEAD.unpack_from(page, behind)[0] != number:
        return None
    text = bytes(page[AT + _HEAD.size : behind]).decode("utf-8", "replace")
    if _HEAD.unpack_from(page, AT)[0] != number:
        return None
    rows = []
    try:
        for row in text.split("\n"):
            phase, part, file, line, *numbers = row.split("\t")
            end, first, last = map(int, numbers[:3])
            rows.append((phase, StackPlace(part, file, int(line), (end, first, last)), list(map(float, numbers[3:]))))
    except ValueError:
        return None  # it is being written
    return rows
