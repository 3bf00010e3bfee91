"""Read the ranks' output, write it to their logs, and forward the ranks that are shown live."""

import selectors
from functools import partial
from typing import Callable, FrozenSet, List, Optional, Sequence, Tuple, Union

from .output import RankOutput
from .ranks import Attempt


class OutputMultiplexer:
    """The pipes of all ranks of a node, in the agent's loop."""

    def __init__(
        self, selector: selectors.BaseSelector, tell: Callable[..., None], is_stalled: Callable[[], bool]
    ) -> None:
        self._selector = selector
        self._tell = tell
        self._is_stalled = is_stalled
        self._shown: Optional[FrozenSet[int]] = frozenset()  # None: all ranks
        self._early: Optional[List[Tuple[str, bytes]]] = []  # output of imports from before the shown ranks are known
        self._paused: List[Tuple[RankOutput, int]] = []

    def show(self, ranks: Union[str, Sequence[int]], imports: RankOutput) -> None:
        """Forward the output of these ranks, or of "all"; earlier output of imports comes first."""
        self._shown = None if ranks == "all" else frozenset(int(rank) for rank in ranks)
        self.hear_all(imports)
        early, self._early = self._early or [], None
        for stream, data in early:
            self.forward_imports(stream, data)

    def forward(self, rank: int) -> Callable[[str, bytes], None]:
        """Return the function that forwards a rank's output."""

        def forward(stream: str, data: bytes) -> None:
            if self._shown is None or rank in self._shown:
                self._tell("output", rank=rank, stream=stream, data=data.decode("utf-8", "surrogateescape"))

        return forward

    def forward_imports(self, stream: str, data: bytes) -> None:
        """Forward the output of an import as rank 0's, as under plain python."""
        if self._early is None:
            self.forward(0)(stream, data)
        else:
            self._early.append((stream, data))

    def listen_to(self, output: RankOutput) -> None:
        for pipe in output.pipes:
            self._register(output, pipe)

    def hear_all(self, output: RankOutput) -> None:
        """Read all that the pipes hold now."""
        for pipe in list(output.pipes):
            while output.read(pipe):
                pass
            if pipe not in output.pipes:
                self._forget(pipe)

    def resume(self) -> None:
        """Resume the ranks that had to wait, once the supervisor reads again."""
        if self._is_stalled():
            return
        paused, self._paused = self._paused, []
        for output, pipe in paused:
            if pipe in output.pipes:
                self._register(output, pipe)

    def silence(self, attempt: Attempt) -> None:
        """Read the last output of an attempt and close its pipes."""
        for rank in attempt.ranks:
            self.hear_all(rank.output)
            for pipe in rank.output.pipes:
                self._forget(pipe)
        attempt.close()

    def _register(self, output: RankOutput, pipe: int) -> None:
        self._selector.register(pipe, selectors.EVENT_READ, partial(self._hear, output, pipe))

    def _hear(self, output: RankOutput, pipe: int) -> None:
        if self._is_stalled():
            self._selector.unregister(pipe)  # the rank blocks in write(), as with a full pipe of its own
            self._paused.append((output, pipe))
            return
        output.read(pipe)
        if pipe not in output.pipes:
            self._selector.unregister(pipe)

    def _forget(self, pipe: int) -> None:
        if pipe in self._selector.get_map():
            self._selector.unregister(pipe)
        self._paused = [entry for entry in self._paused if entry[1] != pipe]
