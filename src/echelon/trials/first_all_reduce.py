"""Write when the first line of a script ran, and when its first all-reduce ended; `bench.start` starts it."""

import time

FIRST_LINE = time.time()

import json  # noqa: E402 - the moment above is that of the first line
import os  # noqa: E402
import sys  # noqa: E402
from collections.abc import Mapping, Sequence  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Meet the other ranks, sum one number, and write both moments on rank 0, completely or not at all."""
    (path,) = arguments
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    values = torch.ones(1, device=device)
    dist.all_reduce(values)
    if float(values) != dist.get_world_size():
        raise RuntimeError(f"the sum of {dist.get_world_size()} ones is {float(values)}")
    if dist.get_rank() == 0:
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump({"first_line": FIRST_LINE, "all_reduced": time.time()}, file)
        os.replace(path + ".part", path)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
