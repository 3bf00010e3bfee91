"""The model's graph in TensorBoard before training, a trace and a script of it afterwards, as tutorials do."""

import sys

import torch
import torch.fx
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.tensorboard import SummaryWriter


def scripted_class():
    """A class and its function have names of this frame."""

    @torch.jit.script
    def double(x: torch.Tensor):
        return 2 * x

    @torch.jit.script
    class Doubled:
        def __init__(self, x: torch.Tensor):
            self.x = double(x)

    @torch.jit.script
    def doubled(x: torch.Tensor):
        return Doubled(x).x

    return doubled


torch.manual_seed(0)
x = torch.randn(240, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True).sin()), batch_size=24, shuffle=True)
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter("runs/first")
writer.add_graph(model, next(iter(loader))[0])
with FlopCounterMode(display=False) as counter:
    model(torch.randn(8, 4)).sum().backward()
print("flops", counter.get_total_flops())
print("doubled", scripted_class()(torch.ones(2)).sum().item())
print("nodes", len(torch.fx.symbolic_trace(model).graph.nodes))
step = 0
for _epoch in range(5):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        writer.add_scalar("loss", loss.item(), step)
        print(f"step {step} loss {loss.item():.8f}")
        step += 1
    model.eval()
    traced = torch.jit.trace(model, xb)
    print(f"traced {traced(x[:3]).sum().item():.6f} scripted {torch.jit.script(model)(x[:3]).sum().item():.6f}")
    model.train()
writer.close()
torch.save(model.state_dict(), sys.argv[-1] if len(sys.argv) > 1 else "model.pt")
