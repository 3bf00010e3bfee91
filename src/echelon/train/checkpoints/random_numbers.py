"""The random numbers of a rank: those of torch, numpy and Python, and the streams that echelon draws for a rank."""

from typing import Any, Dict, List, Mapping, Optional

import torch

from ..exact.keys import Keys
from ..rng import generators
from ..rng.generators import Generators
from .plain import as_bytes, from_bytes

NOW, OF_EPOCH = "random/rank-%d", "random of the epoch/rank-%d"


class RandomNumbers:
    """What is saved of them: the states at the begin of the epoch, which a shuffle follows, and those of now."""

    def __init__(self, streams: List[Generators], keys: Optional[Keys]) -> None:
        self._streams, self._keys = streams, keys
        self._of_epoch: Any = generators.portable_state()
        self._resumed: Any = None

    @property
    def is_resumed(self) -> bool:
        """Whether the states of a checkpoint are still to be set."""
        return self._resumed is not None

    def tensors(self, rank: int) -> Dict[str, torch.Tensor]:
        """Return the states as bytes."""
        now = {
            "global": generators.portable_state(),
            "streams": [stream.own_state() for stream in self._streams],
            "keys": self._keys.place() if self._keys is not None else None,
        }
        return {NOW % rank: as_bytes(now), OF_EPOCH % rank: as_bytes(self._of_epoch)}

    def take(self, kept: Mapping[str, torch.Tensor], rank: int, num_saved: int) -> None:
        """Take the states of this rank. A rank that was not there takes those in which all ranks were equal.

        Ranks are equal where all draw the same order of samples; what differs begins anew on a further rank.
        """
        now = [from_bytes(kept[NOW % one]) for one in range(num_saved)]
        of_epoch = [from_bytes(kept[OF_EPOCH % one]) for one in range(num_saved)]
        if rank < num_saved:
            self._of_epoch, self._resumed = of_epoch[rank], now[rank]
            return
        self._of_epoch = _common(of_epoch)
        self._resumed = {"global": _common([one["global"] for one in now]), "streams": [], "keys": now[0]["keys"]}

    def begin_epoch(self, *, is_in_middle: bool) -> None:
        """Note the states before the loader shuffles; after a checkpoint in the middle of an epoch, set them again."""
        if self.is_resumed and is_in_middle:
            generators.put_portable_state(self._of_epoch)
        else:
            self._of_epoch = generators.portable_state()

    def go_on(self) -> None:
        """Set the states of the checkpoint."""
        states, self._resumed = self._resumed, None
        for stream, state in zip(self._streams, states["streams"]):  # noqa: B905
            if state is not None:
                stream.put_own_state(state)
        if self._keys is not None and states["keys"] is not None:
            self._keys.go_on(tuple(states["keys"]))
        generators.put_portable_state(states["global"])


def _common(every: List[List[Any]]) -> List[Any]:
    """Return each state in which all ranks were equal, and in place of others this rank's own."""
    own = generators.portable_state()
    return [
        states[0] if all(_is_same(states[0], one) for one in states) else mine
        for mine, *states in zip(own, *every)  # noqa: B905
    ]


def _is_same(one: Any, other: Any) -> bool:
    return torch.equal(as_bytes(one), as_bytes(other))
