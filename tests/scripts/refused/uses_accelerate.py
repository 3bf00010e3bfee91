import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
torch.manual_seed(0)
x = torch.randn(120, 4)
y = x.sum(1, keepdim=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x, y), batch_size=12)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for a, b in loader:
    accelerator.backward(nn.functional.mse_loss(model(a), b))
    optimizer.step()
