"""nn.MultiheadAttention in all its forms, with masks, layers that attend to another sequence, and attention by hand."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, CLASSES = 16, 20
FORMS = {"plain": {}, "first": {"batch_first": False}, "no bias": {"bias": False},
         "more": {"add_bias_kv": True, "add_zero_attn": True}, "other widths": {"kdim": 12, "vdim": 20}}  # fmt: skip


class Block(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.form = form
        self.attention = nn.MultiheadAttention(WIDTH, 4, **{"batch_first": True, "dropout": 0.1, **FORMS[form]})
        self.keys, self.values = (nn.Linear(WIDTH, FORMS[form].get(name, WIDTH)) for name in ("kdim", "vdim"))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, WIDTH))

    def forward(self, x, _, padding):
        if self.form == "first":
            given = [x.transpose(0, 1)] * 3
            found = self.attention(*given, key_padding_mask=padding)[0].transpose(0, 1)
        elif self.form == "other widths":
            given = x, self.keys(x), self.values(x)
            found = self.attention(*given, key_padding_mask=padding, need_weights=False)[0]
        else:
            found, weights = self.attention(x, x, x, key_padding_mask=padding, average_attn_weights=False)
            found = found + weights.sum((1, 2, 3), keepdim=True)[..., 0] / 100
        return x + found + self.mlp(x)


class InOne(nn.Module):
    """Queries, keys and values from one matrix, and attention by hand."""

    def __init__(self):
        super().__init__()
        self.qkv, self.drop, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(rows, length, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4).unbind(0)
        weights = self.drop((q @ k.transpose(-2, -1) / 2).softmax(-1))
        return self.proj((weights @ v).transpose(1, 2).reshape(rows, length, WIDTH))


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.norm = InOne(), nn.LayerNorm(WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x, *_):
        x = x + self.attn(self.norm(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


class Decoder(nn.TransformerDecoderLayer):
    def forward(self, x, other, padding):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return super().forward(x, other, tgt_mask=mask, memory_key_padding_mask=padding)


def make(form):
    if form in FORMS:
        return Block(form)
    return ByHand() if form == "by hand" else Decoder(WIDTH, 4, 32, batch_first=True)


class Net(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.embedding, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(make(form) for _ in range(2))

    def forward(self, x, other):
        x, padding = self.embedding(x), other == 0
        for layer in self.layers:
            x = layer(x, self.embedding(other), padding)
        return self.head(x)


torch.manual_seed(2)
for form in (*FORMS, "by hand", "decoder"):
    model = Net(form)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _step in range(2):
        model.train()
        x, other = torch.randint(CLASSES, (8, 6)), torch.randint(1, CLASSES, (8, 6))
        other[::2, -1] = 0
        loss = F.cross_entropy(model(x, other).flatten(0, 1), x.roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            print(f"loss {loss.item():.6f} mean {model(x, other).square().mean():.6f}")
