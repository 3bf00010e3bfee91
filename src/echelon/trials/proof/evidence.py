"""The recording of a run, put together from the records of all its ranks."""

import json
import os
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from echelon.orders import records
from echelon.trials.proof.tensors import Tensor, Tensors, distance, is_same, joined, load

FEWEST_STEPS = 3  # after the first, which imports and compiles
SHORTEST_SECONDS = 1e-3  # a shorter step is the time of the interpreter, and chance
_MOST_BLOCKS = 3  # of a cut tensor, such as queries, keys and values in one
Row = dict[str, Any]


class TensorCut(NamedTuple):
    """How the pieces of several ranks make one tensor: each of its blocks is cut along a dim."""

    dim: int
    num_blocks: int

    def joined(self, pieces: Sequence[Tensor]) -> Tensor | None:
        """Return the whole tensor; None where the pieces are not cut so."""
        blocks = [piece.chunk(self.num_blocks, self.dim) for piece in pieces if piece.dim() > self.dim]
        if len(blocks) < len(pieces) or any(len(of_piece) < self.num_blocks for of_piece in blocks):
            return None
        return joined([of_piece[block] for block in range(self.num_blocks) for of_piece in blocks], self.dim)


class RecordedRun:
    """A recorded run: its steps, and the facts that its ranks noticed."""

    def __init__(self, folder: str, num_ranks: int) -> None:
        self.folder = folder
        self.num_ranks = num_ranks
        steps = [self._text(records.STEPS_FILE % rank).split("\n")[:-1] for rank in range(num_ranks)]
        self.by_rank: list[list[Row]] = [[json.loads(line) for line in lines] for lines in steps]
        self.facts = [self._json(records.FACTS_FILE % rank) for rank in range(num_ranks)]
        self.about = self._json(records.ABOUT)
        self.cuts: dict[str, TensorCut] = {}
        """By name, the tensors that the script cuts without DTensor."""
        self._names: list[dict[str, str]] = [{} for _ in range(num_ranks)]
        self.rows = self._merged()

    def align(self, oracle: Tensors) -> None:
        """Give tensors the names that one device has for them, and find the tensors that ranks have in pieces."""
        if self.num_ranks == 1:
            return
        starts = self.tensors(1, "start")
        known = {label for start in starts for label in start}
        self._names = [_aliases(start, oracle) for start in starts]
        starts = self.tensors(1, "start")
        if len(oracle.keys() & {label for start in starts for label in start}) <= len(oracle.keys() & known):
            self._names = [{} for _ in starts]  # other names explain nothing
            starts = self.tensors(1, "start")
        for label, whole in oracle.items():
            pieces = copies(label, starts)
            if len(pieces) == self.num_ranks and any(piece.shape != whole.shape for piece in pieces):
                cut = _cut(pieces, whole)
                if cut is not None:
                    self.cuts[bare(label)] = cut
        self.rows = self._merged()

    @property
    def step_seconds(self) -> float | None:
        """The seconds of a usual step; None where there are too few steps, or the steps are too short.

        Ranks wait for each other in a step. The rank that records most comes last and waits least, so the shortest
        time is that of the step.
        """
        steps = [min(seconds) for seconds in zip(*(facts.get("seconds", []) for facts in self.facts), strict=False)][1:]
        median = statistics.median(steps) if len(steps) >= FEWEST_STEPS else 0.0
        return median if median >= SHORTEST_SECONDS else None

    def kept(self) -> list[tuple[int, str]]:
        """Return the steps and kinds whose tensors rank 0 kept, in the order in which a mistake shows in them."""
        names = os.listdir(self.folder)
        steps = {int(name.split("-")[1]) for name in names if name.startswith("step-")}
        return [(step, kind) for step in sorted(steps) for kind in records.KINDS
                if records.tensors_file(step, kind, 0) in names]  # fmt: skip

    def tensors(self, step: int, kind: str) -> list[Tensors]:
        """Return the tensors that each rank kept, under the labels that one device has for them."""
        of_ranks = [self._loaded(records.tensors_file(step, kind, rank), {}) for rank in range(self.num_ranks)]
        return [{self._renamed(rank, label): tensor for label, tensor in of_rank.items()}
                for rank, of_rank in enumerate(of_ranks)]  # fmt: skip

    def local(self, step: int) -> list[Tensors]:
        """Return the gradients of each rank before the exchange, by the name of the parameter."""
        of_ranks = [self._loaded(records.LOCAL_FILE % (step, rank), {}) for rank in range(self.num_ranks)]
        return [{names.get(name, name): gradient for name, gradient in of_rank.items()}
                for names, of_rank in zip(self._names, of_ranks, strict=True)]  # fmt: skip

    def activation_traces(self) -> list[list[dict[str, Any]]]:
        """Return the calls of modules in the first step, of each rank."""
        return [self._loaded(records.ACTIVATIONS_FILE % rank, []) for rank in range(self.num_ranks)]

    def whole(self, label: str, tensors: list[Tensors]) -> list[tuple[int, Tensor]]:
        """Return a tensor as each rank has it, or once where it is put together from pieces."""
        mine = [(rank, of_rank[label]) for rank, of_rank in enumerate(tensors) if label in of_rank]
        cut = self.cuts.get(bare(label))
        if cut is not None and len(mine) == self.num_ranks:
            whole = cut.joined([piece for _, piece in mine])
            return mine[:1] if whole is None else [(0, whole)]
        return mine

    def _loaded(self, name: str, default: Any) -> Any:
        return load(os.path.join(self.folder, name)) or default

    def _text(self, name: str) -> str:
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()

    def _json(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._text(name) or "{}")
        return content

    def _renamed(self, rank: int, label: str) -> str:
        name = bare(label)
        known = self._names[rank].get(name)
        return label if known is None else label[: -len(name)] + known

    def _merged(self) -> list[Row]:
        """Return each step with the numbers of all ranks."""
        return [self._of_step(rows) for rows in zip(*self.by_rank, strict=False)]

    def _of_step(self, rows: tuple[Row, ...]) -> Row:
        norms: dict[str, float] = {}
        of_ranks: dict[str, list[tuple[int, float]]] = {}
        for rank, row in enumerate(rows):
            for name, norm in row["norms"].items():
                known = self._names[rank].get(name, name)
                if known not in self.cuts:
                    of_ranks.setdefault(known, []).append((rank, norm))
                elif known in norms:
                    norms[known] = (norms[known] ** 2 + norm**2) ** 0.5
                norms.setdefault(known, norm)
        losses = [row["loss"] for row in rows if row["loss"] is not None]
        return {
            **rows[0],
            "loss": sum(losses) / len(losses) if losses else None,
            "norms": norms,
            "of_ranks": of_ranks,
            "gradient_norm": sum(norm**2 for norm in norms.values()) ** 0.5,
            "ranks": rows,
        }


def bare(label: str) -> str:
    """Return the name of the parameter in a label, such as Net.fc1.weight in "gradient of Net.fc1.weight"."""
    for prefix in (records.INITIAL, records.GRADIENT, records.PARAMETER):
        if label.startswith(prefix):
            return label[len(prefix) :]
    return label.rpartition(" of ")[2]


def copies(label: str, tensors: list[Tensors]) -> list[Tensor]:
    """Return a tensor of each rank that has it."""
    return [of_rank[label] for of_rank in tensors if label in of_rank]


def _aliases(start: Tensors, oracle: Tensors) -> dict[str, str]:
    """Return the oracle's names for tensors that a rank names otherwise, such as the layers of a pipeline's stage."""
    strange = [label for label, tensor in start.items() if not is_same(tensor, oracle.get(label))]
    modules: dict[str, str] = {}
    for label in strange:
        twins = [name for name, tensor in oracle.items() if is_same(start[label], tensor)]
        if len(twins) == 1 and start[label].numel() > 1:
            modules[bare(label).rpartition(".")[0]] = bare(twins[0]).rpartition(".")[0]
    names = {}
    for label in strange:
        module, _, last = bare(label).rpartition(".")
        known = f"{modules[module]}.{last}" if module in modules else ""
        if is_same(start[label], oracle.get(records.INITIAL + known)):
            names[bare(label)] = known
    return names


def _cut(pieces: list[Tensor], whole: Tensor) -> TensorCut | None:
    """Return how pieces make a whole; of several cuts with the right shape, the cut that comes nearest."""
    nearest, least = None, float("inf")
    for cut in (TensorCut(dim, num_blocks) for num_blocks in range(1, _MOST_BLOCKS + 1) for dim in range(whole.dim())):
        tensor = cut.joined(pieces)
        if tensor is not None and tensor.shape == whole.shape and distance(tensor, whole) < least:
            nearest, least = cut, distance(tensor, whole)
    return nearest


NOT_THERE, HAS_SHAPE = "is not there", "has the shape "


class FirstDifference(NamedTuple):
    """The first place where two trainings differ by more than rounding."""

    step: int
    tensor: str  # its label; empty where a number of the whole step differs
    factor: float  # 0: no multiple
    why: str
    meaning: str = ""


class Recordings(NamedTuple):
    """The recordings of one device, of one device with its samples in another order, and of several ranks."""

    oracle: RecordedRun
    reordered: RecordedRun
    several: RecordedRun
    num_ranks: int
    is_own: bool  # the script distributes itself
    is_synced: bool = False  # BatchNorm takes its statistics from the samples of all ranks (--sync-bn)
    is_noisy: bool = False  # on one device a sample has other values at another place of its batch

    def rows(self, step: int) -> tuple[Row, Row]:
        """Return a step, or the last one before it, of one device and of several ranks."""
        place = min(step, len(self.oracle.rows), len(self.several.rows)) - 1
        return self.oracle.rows[place], self.several.rows[place]


def times(factor: float) -> str:
    """Return a factor as people read it."""
    return f"{factor:.3f}" if 0.01 <= abs(factor) < 1000 else f"{factor:.3g}"


def relative(wanted: float | None, number: float | None) -> float:
    """Return the distance of two numbers relative to the first."""
    if wanted is None or number is None:
        return 0.0 if wanted == number else float("inf")
    if wanted == number or (wanted != wanted and number != number):
        return 0.0
    distance = abs(wanted - number) / max(abs(wanted), 1e-12)
    return distance if distance == distance else float("inf")


def on_ranks(ranks: list[int]) -> str:
    """Return ranks as people read them: "rank 0, rank 2"."""
    return ", ".join(f"rank {rank}" for rank in ranks)
