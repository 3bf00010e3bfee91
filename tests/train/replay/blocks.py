"""A small transformer for one device, with a schedule, clipping, evaluation and the best weights in a file."""

import copy
import itertools
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
WIDTH, HEADS, WORDS = 24, 4, 11


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.norm, self.other = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "counts" in sys.argv:
            self.calls += 1
        y = self.norm(x)
        heads = [each(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in (self.q, self.k, self.v)]
        x = x + self.out(functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.other(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


tokens = torch.randint(WORDS, (200, 12)).cumsum(1) % WORDS
anchor: "tuple[torch.Tensor, ...]" = ()
kept = None
loader = DataLoader(TensorDataset(tokens[:168]), batch_size=16, shuffle=True)
model = Model()
decayed = [one for one in model.parameters() if one.dim() > 1]
others = [one for one in model.parameters() if one.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=3e-3
)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=60)


if "compile" in sys.argv:
    model = torch.compile(model, backend="eager")


def loss_of(batch: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(batch).flatten(0, 1), batch.roll(-1, 1).flatten())


step, best, average, more = 0, 9.0, [], ""
chances = itertools.cycle([0]) if "repeated" in sys.argv else None  # no later process can set its position
for epoch in range(4):
    for (batch,) in loader:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if "average" in sys.argv:
            by_hand = sum(one.grad.norm() ** 2 for one in model.parameters()) ** 0.5  # cut like no weight
        optimizer.step()
        schedule.step()
        step += 1 + (next(chances) if chances else 0)
        if "anchor" in sys.argv:
            anchor = anchor or tuple(one.detach().clone() for one in model.parameters())
            with torch.no_grad():
                pairs = zip(anchor, model.parameters(), strict=True)
                far = sum(float((one - weight).square().sum()) for one, weight in pairs)
            more = f" far {far:.6f}"
        if "copies" in sys.argv and step == 2:
            kept = copy.deepcopy(model)
        if "average" in sys.argv:
            with torch.no_grad():
                average = average or [one.detach().clone() for one in model.parameters()]
                for one, weight in zip(average, model.parameters(), strict=True):
                    one.lerp_(weight, 0.1)
        print(f"step {step} loss {loss.item():.6f} norm {float(norm):.6f}{more}")
    with torch.no_grad():
        held = loss_of(tokens[168:]).item()
    if held < best:
        best = held
        torch.save(model.state_dict(), "model.pt")
    total = sum(float(one.double().square().sum()) for one in (average or model.state_dict().values()))
    print(f"epoch {epoch} held {held:.6f} best {best:.6f} weights {total:.6f} rate {schedule.get_last_lr()[0]:.6f}")
