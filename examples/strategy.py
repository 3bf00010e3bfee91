"""Train a small transformer under a strategy that the command line gives, and draw which rank has what of each matrix.

echelon run -n 4 examples/strategy.py shard=2 tensor=2
echelon prove -n 4 examples/strategy.py pipeline=2 shard=2 accumulation=4   # whether that is the same training
"""

import ast
import sys
from dataclasses import fields

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import echelon

VOCABULARY, LENGTH, WIDTH, NUM_HEADS, BATCH_SIZE = 16, 8, 16, 4, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        heads = [
            one(x).unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2) for one in (self.q_proj, self.k_proj, self.v_proj)
        ]
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o_proj(seen.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def strategy_of(words):
    """Return the strategy that words like shard=2 name."""
    names, values = [field.name for field in fields(echelon.Strategy)], {}
    for word in words:
        name, is_given, text = word.partition("=")
        if name not in names or not is_given:
            print(f"strategy.py: {word}: not NAME=VALUE, as shard=2; names: {', '.join(names)}", file=sys.stderr)
            sys.exit(2)
        try:
            values[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            values[name] = text  # a word, as in schedule=1f1b
    return echelon.Strategy(**values)


def main():
    run = echelon.start()
    strategy = strategy_of(sys.argv[1:])
    torch.manual_seed(0)
    first = torch.randint(VOCABULARY, (10 * BATCH_SIZE, 1))
    tokens = (first + torch.arange(LENGTH + 1)) % VOCABULARY  # each is the one before, plus one
    loader = DataLoader(TensorDataset(tokens[:, :-1], tokens[:, 1:]), batch_size=BATCH_SIZE, shuffle=True)
    trained = run.parallelize(Transformer(), strategy, loss=loss_of, sample=tokens[:BATCH_SIZE, :-1])
    trained.optimize(torch.optim.AdamW, lr=1e-2)
    for inputs, targets in loader:
        loss = trained.step(inputs, targets, clip=1.0).loss
    picture = trained.picture()
    if run.is_main:
        heading, *rows = picture.splitlines()
        print(heading, *(row for row in rows if " × " in row), f"loss {loss.item():.4f}", sep="\n")


if __name__ == "__main__":
    main()
