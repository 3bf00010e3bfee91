"""Train with Lightning Fabric.

    python with_fabric.py                              one process
    echelon run -n 2 with_fabric.py                    two ranks on this machine
    salloc --nodes=2 echelon run -n 2 with_fabric.py   two on each of two nodes

Fabric wants to be told how many ranks there are, and compares that with what it finds.
"""

import os

import task
import torch
from lightning.fabric import Fabric
from task_torch import end_well, make_dataset, make_model
from torch.nn import functional as F
from torch.utils.data import DataLoader


def main() -> None:
    options = task.new_parser(__doc__).parse_args()
    devices, nodes = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"))
    fabric = Fabric(devices=devices, num_nodes=nodes, strategy="ddp" if devices * nodes > 1 else "auto")
    fabric.launch()

    rows = task.rows_of_a_rank(options.batch_size, fabric.world_size)
    loader = DataLoader(make_dataset(options.steps * options.batch_size), batch_size=rows)  # batch_size is per rank
    loader = fabric.setup_dataloaders(loader)
    model = make_model(options.width)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=task.LEARNING_RATE))

    for step, (points, kinds) in enumerate(loader, start=1):
        loss = F.cross_entropy(model(points), kinds)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        mean = fabric.all_reduce(loss.detach(), reduce_op="mean")
        if fabric.is_global_zero:
            print(f"step {step} loss {mean.item():.6f}", flush=True)
    end_well()


if __name__ == "__main__":
    main()
