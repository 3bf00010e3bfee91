"""How long `echelon fit` takes for models of 1, 7 and 175 billion parameters: `python -m benchmarks.fit [NAME …]`.

For each model: the seconds of the whole command with every strategy on 8 devices, its most memory, and the number of
strategies. Nothing else answers this question without a GPU, so that there is no peer beside it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

ROOT = Path(__file__).parents[1]


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


def main(names: list[str]) -> None:
    """Print a row for each model."""
    for name in names or SHAPES:
        began = time.monotonic()
        words = [sys.executable, "-m", "echelon", "fit", "--device", "a100-80", "--gpus", "8", "--json"]
        environ = {**os.environ, "SHAPE": name, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [*words, "benchmarks.fit:build"], cwd=ROOT, env=environ, stdout=subprocess.PIPE, check=False
        )
        seconds = time.monotonic() - began
        answer = json.loads(done.stdout)
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        number = len(answer["devices"][0]["strategies"])
        print(
            f"{name}: {answer['parameters'] / 1e9:.1f} billion parameters: {seconds:.1f} s, of these "
            f"{answer['seconds']} s for the trace; {number} strategies; at most {most:.0f} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
