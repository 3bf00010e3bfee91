"""Divide a global batch among ranks."""

from __future__ import annotations

from echelon.errors import UsageError
from echelon.plan.misfit import Misfit, way


def batch_variables(batch: int, share: int) -> tuple[tuple[str, str], ...]:
    """Return variables with the global batch and a rank's share; none without a global batch."""
    return (("ECHELON_GLOBAL_BATCH", str(batch)), ("ECHELON_BATCH_PER_RANK", str(share))) if batch else ()


def refuse_uneven_shards(num_shards: int, num_ranks: int) -> None:
    """Raise UsageError if the ranks cannot have equal numbers of the virtual shards of `--exact`; 0: there are none."""
    if not num_shards or num_shards % num_ranks == 0:
        return
    valid = [str(1 << power) for power in range(num_shards.bit_length())]
    raise UsageError(
        f"--exact {num_shards} needs {', '.join(valid[:-1])} or {valid[-1]} ranks, but the run has {num_ranks}",
        hint=f"echelon run -n {1 << (min(num_ranks, num_shards).bit_length() - 1)} --exact {num_shards} …",
    )


def share_of_batch(batch: int, num_ranks: int) -> int:
    """Return the samples of one rank; raise Misfit with the nearest valid batches if they cannot be equal."""
    if batch % num_ranks:
        below, above = batch - batch % num_ranks, batch + num_ranks - batch % num_ranks
        ways = tuple(way(global_batch=number) for number in (below, above) if number)
        near = " or ".join(f"--global-batch {number}" for number in (below, above) if number)
        message = f"{num_ranks} ranks cannot share a global batch of {batch} equally"
        raise Misfit(message, ways=ways, num_shown=2, hint=near)
    return batch // num_ranks
