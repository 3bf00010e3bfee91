"""Train with DeepSpeed, its ZeRO stage by option and everything else in with_deepspeed.json.

    echelon run -n 1 with_deepspeed.py --stage 3                    one process
    echelon run -n 2 with_deepspeed.py --stage 3                    two ranks on this machine
    salloc --nodes=2 echelon run -n 2 with_deepspeed.py --stage 3   two on each of two nodes

No hostfile and no `deepspeed` before the script. Without a GPU: `--env DS_ACCELERATOR=cpu` after `echelon run`.
"""

import json
from pathlib import Path

import deepspeed
import task
import torch
import torch.distributed as dist
from task_torch import end_well, make_dataset, make_model
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    parser = task.new_parser(__doc__)
    parser.add_argument("--stage", type=int, choices=range(4), default=1, help="what ZeRO shares: nothing, the states "
                        "of the optimizer, gradients too, weights too")  # fmt: skip
    parser.add_argument("--deepspeed_config", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--local_rank", type=int, default=-1, help="given by the deepspeed launcher; not needed")
    options = parser.parse_args()
    deepspeed.init_distributed()
    rows = task.rows_of_a_rank(options.batch_size, dist.get_world_size())
    dataset = make_dataset(options.steps * options.batch_size)
    loader = DataLoader(dataset, batch_size=rows, sampler=DistributedSampler(dataset, shuffle=False))

    config = json.loads(options.deepspeed_config.read_text())
    config["train_batch_size"] = options.batch_size  # over all ranks; the micro batch follows from it
    config["zero_optimization"]["stage"] = options.stage
    model = make_model(options.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.LEARNING_RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    for step, (points, kinds) in enumerate(loader, start=1):
        loss = F.cross_entropy(engine(points.to(engine.device)), kinds.to(engine.device))
        engine.backward(loss)
        engine.step()
        mean = loss.detach() / dist.get_world_size()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            print(f"step {step} loss {mean.item():.6f}", flush=True)
    end_well()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
