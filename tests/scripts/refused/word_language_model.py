"""The language model of PyTorch's examples: batchify, [time, batch], a hidden state that is carried over."""

import torch
from torch import nn

torch.manual_seed(0)
vocabulary, batch_size, bptt = 20, 8, 7


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.rnn, self.decoder = nn.Embedding(vocabulary, 16), nn.LSTM(16, 16), nn.Linear(16, vocabulary)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.encoder(x), hidden)
        return nn.functional.log_softmax(self.decoder(output).view(-1, vocabulary), dim=1), hidden


def batchify(data):
    return data[: len(data) // batch_size * batch_size].view(batch_size, -1).t().contiguous()


data = batchify(torch.randint(vocabulary, (401,)))
model = RNNModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
hidden = (torch.zeros(1, batch_size, 16), torch.zeros(1, batch_size, 16))
for i in range(0, data.size(0) - 1, bptt):
    length = min(bptt, data.size(0) - 1 - i)
    hidden = tuple(h.detach() for h in hidden)
    output, hidden = model(data[i : i + length], hidden)
    loss = nn.functional.nll_loss(output, data[i + 1 : i + 1 + length].view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.8f}")
