"""Contrastive learning: two views, a queue of keys, positives by gather and masked_select, a momentum encoder."""

import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"


class MoCo(nn.Module):
    def __init__(self, dim=16, K=64, m=0.99, T=0.07):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        make = lambda: nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, dim))  # noqa: E731
        self.encoder_q, self.encoder_k = make(), make()
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            k.data.copy_(q.data)
            k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            k.data = k.data * self.m + q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        batch_size = keys.shape[0]
        ptr = int(self.queue_ptr)
        assert self.K % batch_size == 0
        self.queue[:, ptr : ptr + batch_size] = keys.T
        self.queue_ptr[0] = (ptr + batch_size) % self.K

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            idx_shuffle = torch.randperm(im_k.shape[0]).cuda()
            idx_unshuffle = torch.argsort(idx_shuffle)
            k = F.normalize(self.encoder_k(im_k[idx_shuffle]), dim=1)[idx_unshuffle]
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long).cuda()
        self._dequeue_and_enqueue(k)
        return q, logits, labels


def hardest(features, labels):
    similarity = features @ features.T
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    same.fill_diagonal_(False)
    negatives = similarity.masked_fill(same, -1.0).topk(3, dim=1).indices
    pairs = torch.gather(similarity, 1, negatives)
    positives = torch.masked_select(similarity, same)
    if positives.numel() == 0:
        return pairs.mean()
    rows, _ = torch.where(same)
    return F.relu(pairs.mean() - positives.mean() + 0.2) + 0 * features[rows].sum() + 0 * torch.unique(labels).sum()


model = MoCo().cuda(DEVICE)
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.03, momentum=0.9, weight_decay=1e-4)
criterion = nn.CrossEntropyLoss().cuda()
x, y = torch.randn(64, 20), torch.randint(0, 8, (64,))
for _ in range(3):
    for start in range(0, 64, 16):
        view = x[start : start + 16].cuda(DEVICE, non_blocking=True)
        labels = y[start : start + 16].cuda()
        features, logits, target = model(view + 0.1 * torch.randn_like(view), view + 0.1 * torch.randn_like(view))
        loss = criterion(logits, target) + 0.1 * hardest(features, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.4f}")
