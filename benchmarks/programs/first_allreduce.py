"""Note when rank 0 has finished its first all-reduce: `first_allreduce.py FOLDER`."""

import os
import sys
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    with open(os.path.join(sys.argv[1], "rank-0"), "w") as mark:
        mark.write(repr(time.monotonic()))
dist.destroy_process_group()
