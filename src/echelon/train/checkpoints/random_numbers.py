"""The random numbers of a rank: those of torch, numpy and Python, and the streams that echelon draws for a rank."""

from typing import Any, Dict, List, Mapping, Optional

import torch

from ..exact.keys import Keys
from ..replay.generators import of_loader, put_state, state_of
from ..rng import generators
from ..rng.generators import Generators
from .byte_tensors import OWN, as_bytes, from_bytes
from .workers import Saved

NOW, OF_EPOCH = OWN + "random/rank-%d", OWN + "random of the epoch/rank-%d"


class RandomNumbers:
    """What is saved of them: the states at the begin of the epoch, which a shuffle follows, and those of now."""

    def __init__(self, streams: List[Generators], keys: Optional[Keys]) -> None:
        self._streams, self._keys = streams, keys
        self._of_epoch: Any = {"global": generators.portable_state(), "loader": []}
        self._of_loader: List[Any] = []
        """The generators from which the loader draws, besides the global ones."""
        self._resumed: Any = None

    @property
    def is_resumed(self) -> bool:
        """Whether the states of a checkpoint are still to be set."""
        return self._resumed is not None

    @property
    def of_workers(self) -> Saved:
        """The states of the workers of a loader in the checkpoint."""
        num_workers, states = self._resumed.get("workers", (0, {})) if self.is_resumed else (0, {})
        return num_workers, states

    def tensors(self, rank: int, workers: Saved) -> Dict[str, torch.Tensor]:
        """Return the states as bytes."""
        now = {
            "global": generators.portable_state(),
            "streams": [stream.own_state() for stream in self._streams],
            "keys": self._keys.place() if self._keys is not None else None,
            "loader": [state_of(one) for one in self._of_loader],
            "workers": list(workers),
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
        self._of_epoch = {"global": _common([one["global"] for one in of_epoch]), "loader": of_epoch[0]["loader"]}
        common = _common([one["global"] for one in now])
        self._resumed = {"global": common, "streams": [], "keys": now[0]["keys"], "loader": now[0]["loader"]}

    def begin_epoch(self, loader: Any, *, is_in_middle: bool) -> None:
        """Note the states before the loader shuffles; after a checkpoint in the middle of an epoch, set them again."""
        self._of_loader = of_loader(loader)
        if is_in_middle:
            generators.put_portable_state(self._of_epoch["global"])
            _put(self._of_loader, self._of_epoch["loader"])
            return
        if self.is_resumed:
            _put(self._of_loader, self._resumed["loader"])
        of_loader_now = [state_of(one) for one in self._of_loader]
        self._of_epoch = {"global": generators.portable_state(), "loader": of_loader_now}

    def go_on(self) -> None:
        """Set the states of the checkpoint once more, behind the shuffle, and leave them to the training."""
        if self.is_resumed:
            self.put()
            _put(self._of_loader, self._resumed["loader"])
            self._resumed = None

    def put(self) -> None:
        """Set the states of the checkpoint; a loop over a loader does so once more."""
        states = self._resumed
        for stream, state in zip(self._streams, states["streams"]):  # noqa: B905
            if state is not None:
                stream.put_own_state(state)
        if self._keys is not None and states["keys"] is not None:
            self._keys.go_on(tuple(states["keys"]))
        generators.put_portable_state(states["global"])


def _put(found: List[Any], states: List[Any]) -> None:
    for one, state in zip(found, states):  # noqa: B905
        put_state(one, state)


def _common(every: List[List[Any]]) -> List[Any]:
    """Return each state in which all ranks were equal, and in place of others this rank's own."""
    own = generators.portable_state()
    return [
        states[0] if all(_is_same(states[0], one) for one in states) else mine
        for mine, *states in zip(own, *every)  # noqa: B905
    ]


def _is_same(one: Any, other: Any) -> bool:
    return torch.equal(as_bytes(one), as_bytes(other))
