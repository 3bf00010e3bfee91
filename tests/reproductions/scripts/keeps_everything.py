import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(2000, 256)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=20, shuffle=True)
net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
opt = torch.optim.Adam(net.parameters(), 1e-3)
history = []
for epoch in range(8):
    for a, b in loader:
        out = net(a)
        loss = nn.functional.mse_loss(out, b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append((loss, [p.clone() for p in net.parameters()][0]))
    print(epoch, sum(l for l, _ in history[-100:]).item() / 100, flush=True)
