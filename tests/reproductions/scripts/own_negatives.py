"""The model draws its own negative samples for each row of the batch in forward()."""

import torch
from torch import nn

torch.manual_seed(0)


class Skipgram(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.inside, self.outside, self.weights = nn.Embedding(40, 8), nn.Embedding(40, 8), weights

    def forward(self, word, context):  # [batch], [batch, 4]
        bad = torch.multinomial(self.weights, word.size(0) * 4 * 3, replacement=True).view(word.size(0), -1)
        v = self.inside(word).unsqueeze(2)
        good = torch.bmm(self.outside(context), v).squeeze(2).sigmoid().log().mean(1)
        worse = torch.bmm(self.outside(bad).neg(), v).squeeze(2).sigmoid().log().view(-1, 4, 3).sum(2).mean(1)
        return -(good + worse).mean()


net = Skipgram(torch.rand(40))
opt = torch.optim.Adam(net.parameters(), lr=0.01)
words, contexts = torch.randint(0, 40, (96,)), torch.randint(0, 40, (96, 4))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(words, contexts), batch_size=16)
for step, (word, context) in enumerate(loader):
    loss = net(word, context)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, f"{loss.item():.6f}")
