"""Trains with gloo by hand; one rank hangs at one step in the way that the first argument names.

The rank is ODD, the step STEP, counted from 0; by default rank 1 hangs at its third step.
"""

import ctypes
import os
import pickle
import subprocess
import sys
import time

import torch
import torch.distributed as dist

how = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
is_odd = rank == int(os.environ.get("ODD", "1"))
place = int(os.environ.get("STEP", "2"))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if is_odd and how == "worker" and index == place + 3:
            os.open("fifo", os.O_RDONLY)  # the worker's line
        return torch.ones(4)


def hold_the_lock():
    """Stay in C with Python's lock held, as a broken extension does."""
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)  # the line of the lock


def spin():
    """Stay in Python for ever, in a loop of two lines."""
    while True:  # the line of the loop
        pass


def wait_with_other_shapes():
    """Let all ranks hang at one line, with the dump that NCCL leaves then: gloo would abort."""
    entry = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 812, "input_sizes": [[7 if is_odd else 4]]}
    done = {**entry, "collective_seq_id": 811, "retired": True}
    with open(f"dump-{rank}", "wb") as file:
        pickle.dump({"version": "2.10", "entries": [done, {**entry, "retired": False}]}, file)
    dist.recv(torch.ones(1), (rank + 1) % dist.get_world_size())  # the line of all


def step(number):
    for parameter in model.parameters():
        if not (how == "skips" and is_odd and number == place):
            dist.all_reduce(parameter.grad)  # the line of the collective
    optimizer.step()


def work_slowly(kind):
    """Work without a step and a word: compute, wait for a compiler, or write a large file."""
    end = time.monotonic() + float(os.environ["SLOW"])
    if kind == 1:
        code = f"import time; end = time.monotonic() + {os.environ['SLOW']}\nwhile time.monotonic() < end: pass"
        subprocess.run([sys.executable, "-c", code], check=True)
    while time.monotonic() < end:
        if kind == 2:
            with open(f"scratch-{rank}", "wb") as file:
                file.write(bytes(1 << 20))
            time.sleep(0.2)
        else:
            sum(range(10000))


workers = 1 if how == "worker" else int(os.environ.get("WORKERS", "0"))
for number, rows in enumerate(torch.utils.data.DataLoader(Rows(), batch_size=1, num_workers=workers)):  # the loader
    optimizer.zero_grad()
    model(rows).sum().backward()
    if is_odd and number == place:
        print("hangs", flush=True)
        if how == "lock":
            hold_the_lock()
        elif how == "spins":
            spin()
        elif how == "file":
            os.open("fifo", os.O_RDONLY)  # the line of the file
        elif how == "sleeps":
            time.sleep(600)  # the line of the sleep
        elif how == "stops":
            os.kill(os.getpid(), 19)
    if how == "shapes" and number == place:
        wait_with_other_shapes()
    step(number)
    time.sleep(float(os.environ.get("PAUSE", "0")))
    if how == "slow" and number < 3 and rank == number:
        work_slowly(number)
if how == "ends" and is_odd:
    time.sleep(600)  # the line of the end
dist.barrier()
