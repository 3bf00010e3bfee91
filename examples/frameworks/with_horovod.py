"""Train with Horovod.

    python with_horovod.py                              one process
    echelon run -- mpirun -n 2 python with_horovod.py   two ranks on this machine
    salloc --nodes=2 --ntasks-per-node=2 echelon run -- mpirun -n 4 python with_horovod.py   two on each of two nodes
    salloc --nodes=2 --ntasks-per-node=2 srun --mpi=pmi2 echelon exec python with_horovod.py   the same by srun

Horovod must be built with MPI.
"""

import horovod.torch as hvd
import task
import torch
from task_torch import make_dataset, make_model
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    options = task.new_parser(__doc__).parse_args()
    hvd.init()
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")

    rows = task.rows_of_a_rank(options.batch_size, hvd.size())
    dataset = make_dataset(options.steps * options.batch_size)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=False)
    model = make_model(options.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.LEARNING_RATE)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for step, (points, kinds) in enumerate(DataLoader(dataset, batch_size=rows, sampler=sampler), start=1):
        loss = F.cross_entropy(model(points.to(device)), kinds.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # here Horovod has averaged the gradients of all ranks
        mean = hvd.allreduce(loss.detach(), name="loss")
        if hvd.rank() == 0:
            print(f"step {step} loss {mean.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
