import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(20, 16), nn.ReLU())
decoder = nn.Linear(16, 20)
opt_enc = torch.optim.SGD(encoder.parameters(), lr=0.05)
opt_dec = torch.optim.Adam(decoder.parameters(), lr=0.002)
sched_enc = torch.optim.lr_scheduler.ExponentialLR(opt_enc, gamma=0.9)
sched_dec = torch.optim.lr_scheduler.MultiStepLR(opt_dec, milestones=[2, 4])

data = torch.randn(200, 5) @ torch.randn(5, 20)
loader = DataLoader(TensorDataset(data), batch_size=20, shuffle=True)

step = 0
for _ in range(6):
    for (x,) in loader:
        loss = ((decoder(encoder(x)) - x) ** 2).mean()
        opt_enc.zero_grad()
        opt_dec.zero_grad()
        loss.backward()
        opt_dec.step()
        if step % 2 == 0:
            opt_enc.step()
        print("step", step, "loss", format(loss.item(), ".8f"))
        step += 1
    sched_enc.step()
    sched_dec.step()

torch.save({"encoder": encoder.state_dict(), "decoder": decoder.state_dict()},
           sys.argv[-1] if len(sys.argv) > 1 else "model.pt")  # fmt: skip
