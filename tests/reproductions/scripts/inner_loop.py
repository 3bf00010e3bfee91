"""Meta-learning by hand: a task loop, functional forward with fast weights, one step for the mean of the tasks."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.vars = nn.ParameterList([nn.Parameter(torch.randn(*s) * 0.3) for s in ((16, 6), (16,), (3, 16), (3,))])

    def forward(self, x, vars=None):
        w1, b1, w2, b2 = vars if vars is not None else self.vars
        return F.linear(F.relu(F.linear(x, w1, b1)), w2, b2)


class Meta(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Learner()
        self.optim = torch.optim.Adam(self.net.parameters(), lr=1e-2)

    def forward(self, xs, ys, xq, yq):  # [tasks, samples, 6]
        total = 0.0
        for i in range(xs.size(0)):
            loss = F.cross_entropy(self.net(xs[i]), ys[i])
            fast = [p - 0.1 * g for p, g in zip(self.net.vars, torch.autograd.grad(loss, self.net.vars))]
            total = total + F.cross_entropy(self.net(xq[i], fast), yq[i])
        loss = total / xs.size(0)
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return loss.item()


meta = Meta()
tasks = torch.utils.data.TensorDataset(
    torch.randn(32, 6, 6), torch.randint(0, 3, (32, 6)), torch.randn(32, 9, 6), torch.randint(0, 3, (32, 9))
)
for step, batch in enumerate(torch.utils.data.DataLoader(tasks, batch_size=4)):
    print(step, f"{meta(*batch):.6f}")
