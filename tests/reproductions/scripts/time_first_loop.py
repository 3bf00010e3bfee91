"""A decoder that goes through the steps of one sentence, and looks at all states of the encoder in each."""

import torch
from torch import nn


class Translator(nn.Module):
    def __init__(self, width=12, classes=7):
        super().__init__()
        self.encoder, self.decoder = nn.RNN(classes, width), nn.RNN(classes, width)
        self.score, self.out = nn.Linear(width, width), nn.Linear(2 * width, classes)

    def forward(self, source, target):
        states, last = self.encoder(source.transpose(0, 1))
        outputs = []
        for word in target.transpose(0, 1):
            state, last = self.decoder(word.unsqueeze(0), last)
            weights = torch.stack([torch.dot(state.view(-1), self.score(one).view(-1)) for one in states]).softmax(0)
            context = (weights.view(-1, 1) * states.squeeze(1)).sum(0)
            outputs.append(self.out(torch.cat([state.view(-1), context])))
        return torch.stack(outputs)


torch.manual_seed(0)
words = torch.eye(7)
source, target = words[torch.tensor([[0, 2, 4, 1, 6]])], words[torch.tensor([[5, 3, 2, 1, 0]])]
labels = torch.tensor([3, 2, 1, 0, 6])
model = Translator()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(30):
    loss = nn.functional.cross_entropy(model(source, target), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 9:
        print(step, f"{loss.item():.5f}")
