"""Train with Accelerate.

    python with_accelerate.py                              one process
    echelon run -n 2 with_accelerate.py                    two ranks on this machine
    salloc --nodes=2 echelon run -n 2 with_accelerate.py   two on each of two nodes

No `accelerate config`, no `accelerate launch`: Accelerator finds its place in the variables of the rank.
"""

import task
import torch
from accelerate import Accelerator
from task_torch import end_well, make_dataset, make_model
from torch.nn import functional as F
from torch.utils.data import DataLoader


def main() -> None:
    options = task.new_parser(__doc__).parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    rows = task.rows_of_a_rank(options.batch_size, accelerator.num_processes)
    loader = DataLoader(make_dataset(options.steps * options.batch_size), batch_size=rows)  # batch_size is per rank
    model = make_model(options.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.LEARNING_RATE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for step, (points, kinds) in enumerate(loader, start=1):
        loss = F.cross_entropy(model(points), kinds)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        mean = accelerator.reduce(loss.detach(), reduction="mean")
        if accelerator.is_main_process:
            print(f"step {step} loss {mean.item():.6f}", flush=True)
    end_well()
    accelerator.end_training()


if __name__ == "__main__":
    main()
