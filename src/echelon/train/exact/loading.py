"""Load each virtual shard of a batch by itself, with random numbers that do not depend on the loading process."""

from typing import Any, Callable, List, Sequence, Tuple

from ..rng.generators import seed_again

Shard = Tuple[int, List[Any]]
"""A seed and the indices of samples."""


class Dataset:
    """A dataset that loads several virtual shards at a time."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getitems__(self, shards: Sequence[Shard]) -> List[List[Any]]:
        return [self._samples(seed, indices) for seed, indices in shards]

    def _samples(self, seed: int, indices: List[Any]) -> List[Any]:
        seed_again(seed)
        several = getattr(self._inner, "__getitems__", None)
        return list(several(indices)) if several else [self._inner[index] for index in indices]

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # copy and pickle ask before the inner dataset is set
        return getattr(self._inner, name)


class Batches(List[Any]):
    """The batches of several virtual shards, not the parts of one batch."""


class Collate:
    """Make a batch of each virtual shard."""

    def __init__(self, inner: Callable[[List[Any]], Any]) -> None:
        self._inner = inner

    def __call__(self, shards: List[List[Any]]) -> "Batches":
        return Batches(self._inner(samples) for samples in shards)
