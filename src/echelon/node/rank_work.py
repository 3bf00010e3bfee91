"""Notice whether silent ranks work: whether they use cores, or read and write files."""

from typing import Dict, List, Tuple

from . import process_state

LEAST_CORE_SHARE = 0.02  # threads that only look whether there is something to do use less than 1 % of a core
LEAST_BYTES_PER_SECOND = 1 << 14


class Work:
    """The last times at which ranks themselves used a core, and at which they did other work.

    A rank that waits for other ranks may use a core all the time: NCCL does. Its children, such as the compilers of
    `torch.compile`, and reading and writing are work in any case.
    """

    def __init__(self, now: float) -> None:
        self.others_at = now
        self._began = self._at = now
        self._own_at: Dict[int, float] = {}
        self._ticks: Dict[int, int] = {}
        self._bytes: Dict[int, int] = {}

    def own_at(self, pid: int) -> float:
        """Return when a rank itself used a core last, as far as the looks tell."""
        return self._own_at.get(pid, self._began)

    def look(self, pids: List[int], now: float) -> None:
        """Compare what the ranks and their descendants have used with the last look."""
        ticks, states = _ticks(pids)
        size = {pid: process_state.io_bytes(pid) for pid in ticks}
        seconds = max(now - self._at, 0.001)
        least = LEAST_CORE_SHARE * seconds * process_state.CLOCK_TICKS
        if self._ticks:
            used = {
                pid: number - self._ticks.get(pid, 0 if pid not in pids else number) for pid, number in ticks.items()
            }
            moved = sum(size[pid] - self._bytes[pid] for pid in size if pid in self._bytes)
            others = sum(number for pid, number in used.items() if pid not in pids)
            if others > least or moved > LEAST_BYTES_PER_SECOND * seconds:
                self.others_at = now
            self._own_at.update((pid, now) for pid in states if used[pid] > least or states[pid] == "R")
        else:
            self.others_at = self._began = now
        self._at, self._ticks, self._bytes = now, ticks, size


def _ticks(pids: List[int]) -> Tuple[Dict[int, int], Dict[int, str]]:
    """Return the ticks of all processes of the ranks, and the states of the ranks."""
    ticks: Dict[int, int] = {}
    states: Dict[int, str] = {}
    for pid, family in process_state.descendants(pids).items():
        process = process_state.read(pid)
        if process is not None:
            states[pid] = process.state
            family = [process, *family]
        ticks.update((one.pid, one.ticks) for one in family)
    return ticks, states
