"""Choose the simplest strategy that fits with a margin; of equally simple strategies, the one that sends least."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from echelon.estimate.devices import Device
from echelon.estimate.layout import AFTER_BACKWARD, NEVER, Layout
from echelon.estimate.log import EventLog
from echelon.estimate.verdict import Verdict, judge
from echelon.units import size

MARGIN = 0.05
"""The share of a device that has to stay free: batches of other shapes, and what no log shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A strategy, and the simpler ones that were refused."""

    chosen: Verdict | None
    """None: no strategy fits."""
    refused: tuple[Verdict, ...]
    """The strategies that were tried before the chosen strategy; all strategies if none fits."""
    margin: float

    @property
    def simpler(self) -> Verdict | None:
        """The last one before the chosen one: what the next simpler strategy would take."""
        return self.refused[-1] if self.refused else None

    @property
    def why(self) -> str:
        """One sentence."""
        if self.chosen is None:
            least = min(self.refused, key=lambda verdict: verdict.high_bytes)
            memory = size(least.device.memory_bytes)
            return f"no strategy fits: {least.layout.name} needs least, {size(least.high_bytes)} of {memory}"
        text = f"{self.chosen.layout.name} takes at most {size(self.chosen.high_bytes)}"
        text += f" of {size(self.chosen.device.memory_bytes)}"
        if self.simpler is not None:
            text += f"; {self.simpler.layout.name} would take {size(self.simpler.high_bytes)}"
        return text


def candidates(num_ranks: int, ranks_per_node: int, *, rows: int = 0) -> list[Layout]:
    """Return the strategies for a number of ranks: the simple ones first, then the others by what they send."""
    if num_ranks == 1:
        return [Layout(rows=rows), Layout(checkpointing=True, rows=rows)]
    layouts = [
        Layout(replicate=num_ranks),
        Layout(shard=num_ranks, reshard=NEVER),
        Layout(shard=num_ranks, reshard=AFTER_BACKWARD),
    ]
    if ranks_per_node < num_ranks and num_ranks % ranks_per_node == 0 and ranks_per_node > 1:
        layouts.append(Layout(replicate=num_ranks // ranks_per_node, shard=ranks_per_node))
    layouts.append(Layout(shard=num_ranks))
    layouts += [layout.changed(checkpointing=True) for layout in layouts]
    layouts.append(Layout(shard=num_ranks, checkpointing=True, offload=True))
    return [layout.changed(rows=rows) for layout in layouts]


def choose(
    log: EventLog,
    device: Device,
    num_ranks: int,
    *,
    ranks_per_node: int = 8,
    node_bytes: int = 0,
    rows: int = 0,
    margin: float = MARGIN,
) -> Choice:
    """Try strategies from the simplest on, until one fits; `node_bytes` is the host's memory (0: unknown).

    UsageError if the batch of `rows` rows (0: as traced) has less than one row a rank.
    """
    refused: list[Verdict] = []
    for layout in _possible(log, candidates(num_ranks, ranks_per_node, rows=rows)):
        verdict = judge(log, layout, device)
        host = verdict.memory.host_bytes * min(ranks_per_node, num_ranks)
        has_host = not layout.offload or 0 < host <= (1 - margin) * node_bytes
        if has_host and verdict.fits_with(margin):
            return Choice(chosen=verdict, refused=tuple(refused), margin=margin)
        refused.append(verdict)
    return Choice(chosen=None, refused=tuple(refused), margin=margin)


def _possible(log: EventLog, layouts: Sequence[Layout]) -> list[Layout]:
    """Leave out what a model without blocks cannot have; raise UsageError if the batch has too few rows."""
    if log.rows:
        layouts[0].rows_of_micro_batch(log.rows)
    return [layout for layout in layouts if log.blocks or not layout.checkpointing]
