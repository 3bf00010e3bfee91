"""A recurrent network whose learning rate follows the loss of an evaluation; the best weights are kept and used."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.reads = nn.GRU(8, 16, batch_first=True)
        self.last = nn.Linear(16, 3)

    def forward(self, words):
        return self.last(self.reads(self.words(words))[0])


class Trainer:
    def __init__(self):
        torch.manual_seed(8)
        words = torch.randint(30, (204, 7))
        data = TensorDataset(words, (words + words.roll(1, 1)) % 3)
        train, check = torch.utils.data.random_split(data, [180, 24])
        self.train, self.check = DataLoader(train, batch_size=12, shuffle=True), DataLoader(check, batch_size=12)
        self.model = Tagger()
        self.optimizer = torch.optim.NAdam(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0, factor=0.5)
        self.best, self.kept = float("inf"), None

    def loss_of(self, words, tags):
        return nn.functional.cross_entropy(self.model(words).transpose(1, 2), tags)

    def epoch(self, number):
        for place, (words, tags) in enumerate(self.train):
            self.optimizer.zero_grad()
            loss = self.loss_of(words, tags)
            loss.backward()
            nn.utils.clip_grad_value_(self.model.parameters(), 0.5)
            self.optimizer.step()
            print(f"step {number:2d} {place:3d} loss {loss.item():.9e}", flush=True)
        self.model.eval()
        with torch.no_grad():
            checked = sum(self.loss_of(words, tags).item() for words, tags in self.check)
        self.model.train()
        self.schedule.step(checked)
        if checked < self.best:
            self.best, self.kept = checked, copy.deepcopy(self.model.state_dict())
        rate = self.optimizer.param_groups[0]["lr"]
        print(f"check {number:2d} loss {checked:.9e} best {self.best:.9e} rate {rate:.9e}", flush=True)


trainer = Trainer()
for number in range(4):
    trainer.epoch(number)
trainer.model.load_state_dict(trainer.kept)
with torch.no_grad():
    total = sum(trainer.loss_of(*batch).item() for batch in trainer.check)
print(f"kept loss {total:.9e}", flush=True)
