"""A language model in transformers' style: labels go in, the loss comes out, padding is ignored."""

import sys
from collections import OrderedDict

import torch
from torch import nn
from torch.utils.data import DataLoader


class Model(nn.Module):
    def __init__(self, vocabulary=24, hidden=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.rnn(self.embedding(input_ids))[0])
        output = OrderedDict(logits=logits)
        if labels is not None:
            shifted = logits[:, :-1].reshape(-1, logits.size(-1))
            output["loss"] = nn.CrossEntropyLoss()(shifted, labels[:, 1:].reshape(-1))
        return output


def collate(samples):
    longest = max(len(sample) for sample in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    labels = torch.full((len(samples), longest), -100)
    for i, sample in enumerate(samples):
        ids[i, : len(sample)] = labels[i, : len(sample)] = sample
    return {"input_ids": ids, "labels": labels}


torch.manual_seed(0)
texts = [torch.arange(start, start + 3 + start % 9) % 24 for start in torch.randint(0, 24, (100,)).tolist()]
loader = DataLoader(texts, batch_size=10, shuffle=True, collate_fn=collate)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
step = 0
for _epoch in range(6):
    for batch in loader:
        outputs = model(**batch)
        outputs["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        predicted = outputs["logits"][:, :-1].argmax(-1)
        is_text = batch["labels"][:, 1:] != -100
        accuracy = (predicted == batch["labels"][:, 1:])[is_text].float().mean()
        print(f"step {step} loss {outputs['loss'].item():.8f} accuracy {accuracy:.4f}")
        step += 1
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
