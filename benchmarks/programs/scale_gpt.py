"""Train a GPT of 124 million parameters on one GPU, in bf16 and compiled: `scale_gpt.py FOLDER`."""

import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, BLOCK, WIDTH, NUM_HEADS, NUM_LAYERS = 50304, 1024, 768, 12, 12
BATCH_SIZE, NUM_WARMUP, NUM_TIMED = 16, 30, 100


class Layer(nn.Module):
    """Attention and a two-layer network, each after a norm and added to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stream after this layer."""
        batch, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).split(WIDTH, dim=2)
        q, k, v = (part.view(batch, length, NUM_HEADS, -1).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """The smallest GPT-2, with tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(NUM_LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        logits = self.head(self.norm(self.layers(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


torch.manual_seed(0)
torch.set_float32_matmul_precision("high")
data = torch.randint(0, VOCABULARY, (BATCH_SIZE * 64, BLOCK + 1))
loader = DataLoader(TensorDataset(data), batch_size=BATCH_SIZE, shuffle=True, drop_last=True, pin_memory=True)
model = GPT().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
compiled = torch.compile(model)

step, began = 0, 0.0
while step < NUM_WARMUP + NUM_TIMED:
    for (rows,) in loader:
        rows = rows.to("cuda", non_blocking=True)
        if step == NUM_WARMUP:
            torch.cuda.synchronize()
            began = time.perf_counter()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == NUM_WARMUP + NUM_TIMED:
            break
torch.cuda.synchronize()
milliseconds = (time.perf_counter() - began) / NUM_TIMED * 1e3
print(f"loss {loss.item():.4f}, {BATCH_SIZE * BLOCK / milliseconds * 1e3:.0f} tokens/s", flush=True)
with open(os.path.join(sys.argv[1], "steps"), "w") as file:
    file.write(f"{milliseconds!r} {milliseconds!r}")
