"""Train with PyTorch's DistributedDataParallel.

    echelon run -n 1 with_ddp.py                    one process
    echelon run -n 2 with_ddp.py                    two ranks on this machine
    salloc --nodes=2 echelon run -n 2 with_ddp.py   two on each of two nodes

The sampler shares the rows out among the ranks, and DDP averages their gradients.
"""

import os

import task
import torch
import torch.distributed as dist
from task_torch import end_well, make_dataset, make_model
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    options = task.new_parser(__doc__).parse_args()
    cuda = torch.cuda.is_available()  # also true on AMD
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    rows = task.rows_of_a_rank(options.batch_size, ranks)
    dataset = make_dataset(options.steps * options.batch_size)
    sampler = DistributedSampler(dataset, shuffle=False)  # the points are in no order already
    loader = DataLoader(dataset, batch_size=rows, sampler=sampler)
    model = make_model(options.width).to(device)
    model = DistributedDataParallel(model, device_ids=[device] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.LEARNING_RATE)

    for step, (points, kinds) in enumerate(loader, start=1):
        loss = F.cross_entropy(model(points.to(device)), kinds.to(device))
        optimizer.zero_grad()
        loss.backward()  # here DDP averages the gradients of all ranks
        optimizer.step()
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        if rank == 0:
            print(f"step {step} loss {mean.item():.6f}", flush=True)
    end_well()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
