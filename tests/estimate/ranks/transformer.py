"""A small transformer, for one device and for ranks that split it."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, LENGTH, WIDTH, NUM_HEADS, NUM_BLOCKS, ROWS = 320, 32, 64, 8, 4, 16


class Attention(nn.Module):
    """Causal attention with one matrix for each of queries, keys, values and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        heads = [
            matrix(states).unflatten(-1, (-1, WIDTH // NUM_HEADS)).transpose(1, 2)
            for matrix in (self.q_proj, self.k_proj, self.v_proj)
        ]
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o_proj(seen.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Attention and an MLP, each with a norm before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        states = states + self.attention(self.norm1(states))
        return states + self.mlp(self.norm2(states))


class Transformer(nn.Module):
    """An embedding, blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states = self.embedding(tokens)
        for block in self.blocks:
            states = block(states)
        return self.head(states)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean over all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch() -> "tuple[torch.Tensor, torch.Tensor]":
    """Return inputs and targets."""
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
