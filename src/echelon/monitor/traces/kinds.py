"""What the events of a trace are, from their category and name: operations, collectives, input, optimizers, kernels.

The categories are those of Kineto's ActivityType; old versions wrote `Operator`, `Runtime`, `Kernel`, `Memcpy`. On AMD,
calls of HIP have the category `cuda_runtime` or `hip_runtime`, and kernels the category `kernel`, as on NVIDIA.
"""

from __future__ import annotations

import re

OUTSIDE, OPERATION, OPTIMIZER, COLLECTIVE, INPUT = range(5)
"""What a thread of the CPU is doing: nothing that is known, an operation, a step of an optimizer, a collective, or
waiting for the next batch.
"""
CALL, STEP = 5, 6
"""A call of the driver, which belongs to what surrounds it; and a whole step, `ProfilerStep#N`."""

INPUT_NAME = re.compile(r"data_?loader.*next", re.IGNORECASE)
"""`enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__`; Lightning: `….train_dataloader_next`."""
OPTIMIZER_NAME = "Optimizer.step#"
STEP_NAME = re.compile(r"ProfilerStep#([0-9]{1,12})")
_COLLECTIVE_SPACES = ("c10d::", "_c10d_functional::", "c10d_functional::", "_c10d_functional_autograd::")
_COLLECTIVE_BACKENDS = ("nccl:", "rccl:", "gloo:", "mpi:", "ucc:", "xccl:")
_COLLECTIVE_WORDS = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
_OF_TORCH = ("aten::", "prims::", "autograd::", "torch::")
_KERNEL_OF_LIBRARY = re.compile(r"(nccl|rccl)[A-Z_]?\w*Kernel|^(nccl|rccl)", re.IGNORECASE)

OPERATIONS = ("cpu_op", "Operator")
ANNOTATION = "user_annotation"
KERNELS = ("kernel", "Kernel")
COPIES = ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset")
COLLECTIVE_OF_DEVICE = "collective_comm"
_CALLS = ("_runtime", "_driver", "Runtime")


def is_of_device(category: str) -> bool:
    return category in KERNELS or category in COPIES or category == COLLECTIVE_OF_DEVICE


def of_host(category: str, name: str) -> int:
    """Return what an event of the CPU is; -1: nothing that counts.

    >>> of_host("cpu_op", "c10d::allreduce_") == COLLECTIVE, of_host("cpu_op", "aten::mm") == OPERATION
    (True, True)
    """
    if category in OPERATIONS or category == ANNOTATION:
        if is_collective(name):
            return COLLECTIVE
        if name.startswith(OPTIMIZER_NAME):
            return OPTIMIZER
        if INPUT_NAME.search(name):
            return INPUT
        if category in OPERATIONS:
            return OPERATION
        return STEP if STEP_NAME.fullmatch(name) else -1
    return CALL if category.endswith(_CALLS) else -1


def is_collective(name: str) -> bool:
    """Say whether an operation or annotation of this name exchanges data with other ranks.

    `nccl:all_reduce`, `c10d::allreduce_` and `record_param_comms` are PyTorch's own; operations and annotations of
    libraries have the word in their name: `_C_custom_ar::all_reduce`, `FSDP::all_gather`.
    """
    if name.startswith(_OF_TORCH):
        return False
    if name == "record_param_comms" or name.startswith(_COLLECTIVE_SPACES) or name.startswith(_COLLECTIVE_BACKENDS):
        return True
    return bool(_COLLECTIVE_WORDS.search(name)) and "copy" not in name


def inside(outer: int, own: int) -> int:
    """Return what a thread does within an event, from what surrounds the event: the innermost word counts.

    All that the loader does is input, also its operations; and an optimizer's operations are the optimizer's.
    """
    if outer == INPUT or own == STEP:
        return outer
    if own == CALL:
        return outer or OPERATION
    return OPTIMIZER if own == OPERATION and outer == OPTIMIZER else own


def is_kernel_of_library(name: str) -> bool:
    """Say whether a kernel has the name of NCCL's or RCCL's; it counts only where nothing says what launched it."""
    return bool(_KERNEL_OF_LIBRARY.search(name))
