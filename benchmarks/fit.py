"""How long `echelon fit` takes: `python -m benchmarks.fit [NAME …]`; NAME is 1B, 7B, 175B or scripts.

For models of 1, 7 and 175 billion parameters: the seconds of the whole command with every strategy on 8 devices, its
most memory, and the number of strategies. For scripts of tests/scripts: the trace beside Python alone, which ends after
the second step too. Nothing else answers this question without a GPU, so that there is no other peer.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

ROOT = Path(__file__).parents[1]
TWO_STEPS = """
import os, runpy, sys
from torch.optim.optimizer import register_optimizer_step_post_hook

left = [None] * 2
register_optimizer_step_post_hook(lambda *_: left.pop() or left or os._exit(0))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Ends a script after its second step."""


class Shape(NamedTuple):
    """A decoder's shape."""

    width: int
    depth: int
    heads: int
    inner: int
    length: int
    words: int = 32000


SHAPES = {
    "1B": Shape(2048, 16, 16, 8192, 2048),
    "7B": Shape(4096, 32, 32, 11008, 2048),
    "175B": Shape(12288, 96, 96, 49152, 2048, 50257),
}


class Block(nn.Module):
    """A block of a decoder with a gated MLP, as LLaMA has it; GPT-3's MLP is as large."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, inner = shape.width, shape.inner if shape.depth < 96 else shape.inner * 2 // 3
        self.heads = shape.heads
        self.norm, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        h = self.norm(x)
        parts = (each(h).view(rows, length, self.heads, -1).transpose(1, 2) for each in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(rows, length, width))
        h = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Words, blocks, and the loss of the next word."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.words, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm, self.head = nn.RMSNorm(shape.width), nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens.flatten())


def build() -> tuple[nn.Module, torch.Tensor]:
    """Return the model that the variable SHAPE names, and a batch of eight rows."""
    shape = SHAPES[os.environ["SHAPE"]]
    return Decoder(shape), torch.zeros(8, shape.length, dtype=torch.int64)


def of_model(name: str) -> None:
    """Print the row of a model."""
    answer, seconds = _fit("--gpus", "8", "--device", "a100-80", "benchmarks.fit:build", SHAPE=name)
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    number = len(answer["devices"][0]["strategies"])
    print(
        f"{name}: {answer['parameters'] / 1e9:.1f} billion parameters: {seconds:.1f} s, of these "
        f"{answer['seconds']} s for the trace; {number} strategies; at most {most:.0f} MiB",
        flush=True,
    )


def of_scripts() -> None:
    """Print a row for each of some scripts, and the median ratio."""
    ratios = []
    for script in sorted((ROOT / "tests" / "scripts").glob("*.py"))[::12]:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            line = [sys.executable, "-c", TWO_STEPS, str(script)]
            done = subprocess.run(line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            alone = time.monotonic() - began
        answer, seconds = _fit("--device", "a100-80", str(script))
        if done.returncode or "seconds" not in answer:
            print(f"{script.stem}: left out, for it fails by itself or cannot be traced", flush=True)
            continue
        ratios.append(answer["seconds"] / alone)
        print(
            f"{script.stem}: {alone:.1f} s to the second step, {answer['seconds']:.1f} s to trace it "
            f"({ratios[-1]:.1f} times), {seconds:.1f} s for the whole command",
            flush=True,
        )
    print(f"median of {len(ratios)} scripts: {statistics.median(ratios):.2f} times; at most {max(ratios):.2f}")


def _fit(*words: str, **variables: str) -> tuple[Any, float]:
    """Return the answer of `echelon fit`, {} if there is none, and the seconds that it took."""
    began = time.monotonic()
    line = [sys.executable, "-m", "echelon", "fit", "--json", *words]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(line, cwd=ROOT, env=environ, stdout=subprocess.PIPE, check=False)
    return json.loads(done.stdout or "{}"), time.monotonic() - began


def main(names: list[str]) -> None:
    """Print the rows that are named, or all."""
    for name in names or (*SHAPES, "scripts"):
        of_scripts() if name == "scripts" else of_model(name)


if __name__ == "__main__":
    main(sys.argv[1:])
