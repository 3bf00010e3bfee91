"""A model that computes its loss itself, of tokens that are shifted or not to be learned, in many forms."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import cross_entropy

WIDTH, LENGTH, CLASSES = 16, 8, 20
WEIGHTS = torch.linspace(0.5, 1.5, CLASSES)
FORMS = {
    "plain": lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten()),
    "by name": lambda logits, y: cross_entropy(logits.flatten(0, 1), y.flatten(), WEIGHTS),
    "module": lambda logits, y: nn.CrossEntropyLoss(label_smoothing=0.1)(logits.flatten(0, 1), y.flatten()),
    "logarithms": lambda logits, y: F.nll_loss(logits.log_softmax(-1).flatten(0, 1), y.flatten()),
    "sum": lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / (y >= 0).sum(),
    "each": lambda logits, y: F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").sum() / 50,
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x, labels, form):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return FORMS[form](self.head(x), F.pad(labels, (0, 1), value=-100)[:, 1:])


torch.manual_seed(4)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for form in FORMS:
    x = torch.randint(CLASSES, (8, LENGTH))
    labels = x.masked_fill(torch.rand(x.shape) * torch.arange(LENGTH) < 0.7, -100)
    loss = model(x, labels, form)
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(f"loss {loss.item():.6f} norm {norm:.6f}")
