"""Compare what a run on several ranks printed and saved with what one device did."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LOSS_RELATIVE, LOSS_ABSOLUTE = 1e-5, 2e-8
WEIGHTS_RELATIVE, WEIGHTS_ABSOLUTE = 1e-4, 1e-6
STEP = re.compile(r"^step (\d+)\b.*?\bloss (\S+)", re.MULTILINE)
NO_WEIGHTS = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What one run left behind."""

    folder: str
    returncode: int
    out: str
    err: str

    @property
    def weights(self) -> str:
        return os.path.join(self.folder, "model.pt")


def read_losses(out: str) -> list[tuple[int, float]]:
    """Return the steps and losses that were printed."""
    return [(int(step), float(loss)) for step, loss in STEP.findall(out)]


def are_losses_equal(ours: Sequence[tuple[int, float]], alone: Sequence[tuple[int, float]]) -> bool:
    """Say whether the same steps were printed with the same losses."""
    return [step for step, _ in ours] == [step for step, _ in alone] and all(
        abs(loss - expected) <= max(LOSS_RELATIVE * abs(expected), LOSS_ABSOLUTE)
        for (_, loss), (_, expected) in zip(ours, alone, strict=True)
    )


def difference_of_weights(ours: str, alone: str) -> tuple[bool, float]:
    """Say whether two files hold the same weights, and by what part of its norm the worst tensor differs."""
    import torch  # by those alone who compare

    if not os.path.exists(ours):
        return False, NO_WEIGHTS
    found, expected = (dict(_tensors(torch.load(path))) for path in (ours, alone))
    if found.keys() != expected.keys() or any(found[key].shape != expected[key].shape for key in expected):
        return False, NO_WEIGHTS
    norms = {key: expected[key].double().norm().item() for key in expected}
    differences = {key: (found[key].double() - expected[key].double()).norm().item() for key in expected}
    are_equal = all(differences[key] <= WEIGHTS_RELATIVE * norms[key] + WEIGHTS_ABSOLUTE for key in expected)
    return are_equal, max((differences[key] / (norms[key] + WEIGHTS_ABSOLUTE) for key in expected), default=0.0)


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a saved object; a wrapper's `module.` in a name is no difference in weights."""
    if isinstance(value, dict | list | tuple):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in entries:
            yield from _tensors(one, f"{path}.{key}")
    elif hasattr(value, "shape"):
        yield path.replace(".module.", "."), value


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How the rank ended that failed first."""

    reason: str
    is_raised_by: str
    """The file whose `raise` it was; empty where no program raised it on purpose."""


def read_failure(done: Done, logs: str) -> Failure:
    """Find the traceback of the rank that failed first in its log."""
    first = re.search(r"rank (\d+) on .* failed first", done.err)
    path = os.path.join(logs, f"rank-{first[1] if first else 0}.log")
    text = _read(path) if os.path.exists(path) else done.err
    lines = [re.sub(r"^(\[rank\d+\]: |\d[\d:. -]* )", "", line) for line in text.splitlines()]
    frames = [i for i, line in enumerate(lines) if re.match(r'\s+File ".*", line \d+', line)]
    if not frames:
        return Failure(reason=lines[-1] if lines else f"exit code {done.returncode}", is_raised_by="")
    place, source = lines[frames[-1]].split('"')[1], lines[frames[-1] + 1].strip()
    message = next((line for line in lines[frames[-1] + 1 :] if re.match(r"[\w.]+(Error|Exception)\b", line)), "")
    return Failure(reason=message, is_raised_by=place if source.startswith("raise") else "")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
