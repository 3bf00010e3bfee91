"""What was recorded of one run, put together from all its ranks."""

import json
import os
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

KINDS = ("start", "others", "gradients", "states", "parameters")  # in the order in which they go wrong
PREFIXES = ("initial ", "gradient of ", "parameter ")
_MOST_BLOCKS = 3  # that a cut tensor is made of, such as queries, keys and values in one
Row = Dict[str, Any]
Tensors = Dict[str, torch.Tensor]


class Cut(NamedTuple):
    """How several ranks' pieces make one tensor: cut along a dim, each of its blocks by itself."""

    dim: int
    num_blocks: int

    def joined(self, pieces: List[torch.Tensor]) -> Optional[torch.Tensor]:
        """Return the whole; None where the pieces are not cut so."""
        blocks = [list(piece.chunk(self.num_blocks, self.dim)) for piece in pieces if piece.dim() > self.dim]
        if len(blocks) < len(pieces) or any(len(one) < self.num_blocks for one in blocks):
            return None
        ordered = [one[block] for block in range(self.num_blocks) for one in blocks]
        try:
            return torch.cat(ordered, self.dim)
        except RuntimeError:
            return None


class Recorded:
    """One run: its steps, and whatever its ranks noticed."""

    def __init__(self, folder: str, num_ranks: int) -> None:
        self.folder = folder
        self.num_ranks = num_ranks
        self.by_rank = [_lines(os.path.join(folder, "rank-%d.jsonl" % rank)) for rank in range(num_ranks)]
        self.facts = [_json(os.path.join(folder, "facts-%d.json" % rank)) for rank in range(num_ranks)]
        self.about = _json(os.path.join(folder, "about.json"))
        self.cuts: Dict[str, Cut] = {}
        """By name, the tensors that the script cuts by other means than DTensor."""
        self._names: List[Dict[str, str]] = [{} for _ in range(num_ranks)]
        self.rows = self._merged()

    def align(self, start: Tensors) -> None:
        """Find what each rank calls otherwise, and what it has a piece of, by what one device begins with."""
        if self.num_ranks == 1:
            return
        starts = self.tensors(1, "start")
        known = {label for mine in starts for label in mine}
        self._names = [_aliases(mine, start) for mine in starts]
        starts = self.tensors(1, "start")
        if len(start.keys() & {label for mine in starts for label in mine}) <= len(start.keys() & known):
            self._names = [{} for _ in starts]  # other names explain nothing
            starts = self.tensors(1, "start")
        for label, one in start.items():
            pieces = [mine[label] for mine in starts if label in mine]
            if len(pieces) == self.num_ranks and any(piece.shape != one.shape for piece in pieces):
                cut = _cut(pieces, one)
                if cut is not None:
                    self.cuts[bare(label)] = cut
        self.rows = self._merged()

    @property
    def seconds(self) -> List[List[float]]:
        """Return how long each rank's steps took."""
        return [of_rank.get("seconds", []) for of_rank in self.facts]

    def kept(self) -> List[Tuple[int, str]]:
        """Return the steps and kinds of which rank 0 kept tensors, in the order in which they go wrong."""
        found = [name[len("step-") : -len(".pt")].split("-") for name in os.listdir(self.folder)
                 if name.startswith("step-") and name.endswith(".pt")]  # fmt: skip
        pairs = {(int(parts[0]), parts[1]) for parts in found if len(parts) == 2}
        return sorted(pairs, key=lambda one: (one[0], KINDS.index(one[1])))

    def tensors(self, step: int, kind: str) -> List[Tensors]:
        """Return what each rank kept, under the names that one device has for it."""
        result = []
        for rank in range(self.num_ranks):
            name = "step-%d-%s%s.pt" % (step, kind, "-%d" % rank if rank else "")
            mine = _loaded(os.path.join(self.folder, name)) or {}
            result.append({self._renamed(rank, label): one for label, one in mine.items()})
        return result

    def local(self, step: int) -> List[Tensors]:
        """Return the gradients that each rank found by itself, by the name of the parameter."""
        found = [_loaded(os.path.join(self.folder, "local-%d-%d.pt" % (step, rank))) for rank in range(self.num_ranks)]
        return [
            {self._names[rank].get(name, name): one for name, one in (mine or {}).items()}
            for rank, mine in enumerate(found)
        ]

    def trail(self) -> List[List[Dict[str, Any]]]:
        """Return the calls of modules in the first step, of each rank."""
        return [_loaded(os.path.join(self.folder, "trail-%d.pt" % rank)) or [] for rank in range(self.num_ranks)]

    def whole(self, label: str, tensors: List[Tensors]) -> List[Tuple[int, torch.Tensor]]:
        """Return a tensor as each rank has it, or once where it was put together from pieces."""
        mine = [(rank, one[label]) for rank, one in enumerate(tensors) if label in one]
        cut = self.cuts.get(bare(label))
        if cut is not None and len(mine) == self.num_ranks:
            joined = cut.joined([one for _, one in mine])
            return mine[:1] if joined is None else [(0, joined)]
        return mine

    def _renamed(self, rank: int, label: str) -> str:
        name = bare(label)
        known = self._names[rank].get(name)
        return label if known is None else label[: -len(name)] + known

    def _merged(self) -> List[Row]:
        """Return each step with the numbers of all ranks."""
        return [self._of_step(rows) for rows in zip(*self.by_rank)]  # noqa: B905

    def _of_step(self, rows: Tuple[Row, ...]) -> Row:
        norms: Dict[str, float] = {}
        of_ranks: Dict[str, List[Tuple[int, float]]] = {}
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
    """Return the name of a parameter that a label is about."""
    for prefix in PREFIXES:
        if label.startswith(prefix):
            return label[len(prefix) :]
    return label.rpartition(" of ")[2]


def _aliases(mine: Tensors, theirs: Tensors) -> Dict[str, str]:
    """Return other names for what a rank calls otherwise: a stage of its own has the weights of some inner layer."""
    strange = [label for label, one in mine.items() if not _same(one, theirs.get(label))]
    modules: Dict[str, str] = {}
    for label in strange:
        twins = [name for name, one in theirs.items() if _same(mine[label], one)]
        if len(twins) == 1 and mine[label].numel() > 1:
            modules[bare(label).rpartition(".")[0]] = bare(twins[0]).rpartition(".")[0]
    names = {}
    for label in strange:
        module, _, last = bare(label).rpartition(".")
        known = "%s.%s" % (modules[module], last) if module in modules else ""
        if _same(mine[label], theirs.get("initial " + known)):
            names[bare(label)] = known
    return names


def _same(one: torch.Tensor, other: Optional[torch.Tensor]) -> bool:
    return other is not None and one.shape == other.shape and torch.equal(one, other)


def _cut(pieces: List[torch.Tensor], one: torch.Tensor) -> Optional[Cut]:
    """Return how pieces make a whole; where several ways have the right shape, the one that comes nearest."""
    found = []
    for cut in _ways(one.dim()):
        joined = cut.joined(pieces)
        if joined is not None and joined.shape == one.shape:
            found.append((float((joined.double() - one.double()).norm()), cut))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _ways(num_dims: int) -> Iterator[Cut]:
    for num_blocks in range(1, _MOST_BLOCKS + 1):
        for dim in range(num_dims):
            yield Cut(dim, num_blocks)


def _lines(path: str) -> List[Row]:
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


def _json(path: str) -> Dict[str, Any]:
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        found: Dict[str, Any] = json.load(file)
    return found


def _loaded(path: str) -> Any:
    return torch.load(path, weights_only=True) if os.path.exists(path) else None
