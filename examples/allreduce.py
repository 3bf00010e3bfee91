"""Add up one number from every rank: the shortest program in which all ranks meet.

Usage: echelon run -n 4 allreduce.py
"""

import os

import torch
import torch.distributed as dist


def main() -> None:
    """Contribute this rank's number and let rank 0 print the sum."""
    cuda = torch.cuda.is_available()  # also true on AMD
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if cuda else "gloo")
    number = torch.tensor(dist.get_rank() + 1, device="cuda" if cuda else "cpu")
    dist.all_reduce(number)
    if dist.get_rank() == 0:
        print(f"1 + ... + {dist.get_world_size()} = {number.item()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
