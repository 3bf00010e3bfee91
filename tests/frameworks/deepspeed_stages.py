"""Train the example with each stage of ZeRO in turn, so that DeepSpeed is imported and its ranks meet only once."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "frameworks"))

import deepspeed
import torch.distributed as dist
import with_deepspeed

STAGES = range(4)

if __name__ == "__main__":
    # gloo's collectives, as between nodes: its own for shared memory compile for two minutes
    deepspeed.ops.__compatible_ops__ = {}
    begun, leave = sys.argv, dist.destroy_process_group
    dist.destroy_process_group = lambda: None  # until the last is over
    for stage in STAGES:
        sys.argv = [*begun, "--stage", str(stage)]
        with_deepspeed.main()
    leave()
