"""nn.MultiheadAttention in all its forms, with masks, and layers that attend to another sequence."""

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


class Decoder(nn.TransformerDecoderLayer):
    def forward(self, x, other, padding):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return super().forward(x, other, tgt_mask=mask, memory_key_padding_mask=padding)


class Net(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.embedding, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(
            Block(form) if form in FORMS else Decoder(WIDTH, 4, 32, batch_first=True) for _ in range(2)
        )

    def forward(self, x, other):
        x, padding = self.embedding(x), other == 0
        for layer in self.layers:
            x = layer(x, self.embedding(other), padding)
        return self.head(x)


torch.manual_seed(2)
for form in (*FORMS, "decoder"):
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
