"""A vision transformer: patches by reshapes, a class token, stochastic depth, mixup, a warm-up by LambdaLR."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import einsum, nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def pair(t):
    return t if isinstance(t, tuple) else (t, t)


class Attention(nn.Module):
    def __init__(self, dim, heads=4, dim_head=8, dropout=0.1):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm, self.dropout = nn.LayerNorm(dim), nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, heads * dim_head * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(heads * dim_head, dim), nn.Dropout(dropout))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.to_qkv(self.norm(x)).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attn = self.dropout((einsum("b h i d, b h j d -> b h i j", q, k) * self.scale).softmax(dim=-1))
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class DropPath(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training:
            return x
        keep = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - self.p)
        return x * keep.div_(1 - self.p)


class ViT(nn.Module):
    def __init__(self, image_size, patch_size, num_classes, dim, depth):
        super().__init__()
        height, width = pair(image_size)
        self.patch = patch_size
        self.to_patch = nn.Sequential(nn.LayerNorm(3 * patch_size**2), nn.Linear(3 * patch_size**2, dim))
        num_patches = (height // patch_size) * (width // patch_size)
        self.pos_embedding = nn.Parameter(torch.randn(1, num_patches + 1, dim))
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.layers = nn.ModuleList([])
        for p in torch.linspace(0, 0.1, depth):
            mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
            self.layers.append(nn.ModuleList([Attention(dim), mlp, DropPath(p.item())]))
        self.head = nn.Linear(dim, num_classes)
        nn.init.trunc_normal_(self.pos_embedding, std=0.02)

    def forward(self, img):
        b, c, h, w = img.shape
        p = self.patch
        x = img.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(b, -1, p * p * c)
        x = self.to_patch(x)
        x = torch.cat((self.cls_token.expand(b, -1, -1), x), dim=1)
        x += self.pos_embedding[:, : x.shape[1]]
        for attention, mlp, drop in self.layers:
            x = x + drop(attention(x))
            x = x + drop(mlp(x))
        return self.head(x[:, 0])


def rand_bbox(size, lam):
    cut = int(size[2] * math.sqrt(1.0 - lam))
    cx, cy = np.random.randint(size[2]), np.random.randint(size[3])
    return (*np.clip([cx - cut // 2, cx + cut // 2], 0, size[2]), *np.clip([cy - cut // 2, cy + cut // 2], 0, size[3]))


model = ViT(16, 4, 10, 32, 2).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
for _ in range(6):
    images, labels = torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))
    images, labels = images.to(device), labels.to(device)
    lam = np.random.beta(1.0, 1.0)
    index = torch.randperm(images.size()[0]).to(device)
    x1, x2, y1, y2 = rand_bbox(images.size(), lam)
    images[:, :, x1:x2, y1:y2] = images[index, :, x1:x2, y1:y2]
    logits = model(images)
    loss = F.cross_entropy(logits, labels) * lam + F.cross_entropy(logits, labels[index]) * (1.0 - lam)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    print(f"loss {loss:.4f} norm {norm:.3f} acc {(logits.argmax(-1) == labels).float().mean().item():.2f}")
