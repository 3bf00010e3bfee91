"""A device without memory: PyTorch's own words are read, and what they mean and what helps is said."""

import pytest

from echelon.launch import device_memory

from .shell import Shell

_ADVICE = (
    " If reserved but unallocated memory is large try setting {}=expandable_segments:True to avoid fragmentation."
    "  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
_CUDA, _HIP = _ADVICE.format("PYTORCH_CUDA_ALLOC_CONF"), _ADVICE.format("PYTORCH_HIP_ALLOC_CONF")
# as people have shown them, with the thread where there is one
FULL = (  # pytorch/pytorch#16417
    "CUDA out of memory. Tried to allocate 22.00 MiB. GPU 0 has a total capacity of 23.65 GiB of which 11.06 MiB is "
    "free. Including non-PyTorch memory, this process has 23.60 GiB memory in use. Of the allocated memory 22.90 GiB "
    "is allocated by PyTorch, and 194.87 MiB is reserved by PyTorch but unallocated." + _CUDA
)
IN_PIECES = (  # pytorch/pytorch#138002
    "HIP out of memory. Tried to allocate 6.64 GiB. GPU 0 has a total capacity of 19.92 GiB of which 6.22 GiB is free. "
    "Of the allocated memory 5.34 GiB is allocated by PyTorch, and 7.10 GiB is reserved by PyTorch but unallocated."
    + _HIP
)
HELD_BY_OTHERS = (  # made from c10/cuda/CUDACachingAllocator.cpp, with two processes on the device
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.15 GiB of which 1.20 GiB is "
    "free. Process 4711 has 40.30 GiB memory in use. Including non-PyTorch memory, this process has 37.60 GiB memory "
    "in use. Of the allocated memory 36.10 GiB is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but "
    "unallocated." + _CUDA
)
OWN_NUMBER_IN_A_CONTAINER = (  # of a notebook in a container: the process is this one, by its number outside
    "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 47.53 GiB of which 16.88 MiB is "
    "free. Process 3652628 has 47.51 GiB memory in use. Of the allocated memory 47.14 GiB is allocated by PyTorch, and "
    "57.79 MiB is reserved by PyTorch but unallocated." + _CUDA
)
ALLOWED = (  # ROCm/TheRock#2118
    "HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 GiB of which 244.65 GiB is "
    "free. 1.05 GiB allowed; Of the allocated memory 1017.01 MiB is allocated by PyTorch, with 17.00 MiB allocated in "
    "private pools (e.g., HIP Graphs), and 54.99 MiB is reserved by PyTorch but unallocated." + _CUDA
)
NOT_FULL = (  # pytorch/pytorch#175431
    "HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of 287.98 GiB of which 203.49 GiB is "
    "free. Of the allocated memory 68.63 GiB is allocated by PyTorch, and 14.93 GiB is reserved by PyTorch but "
    "unallocated." + _CUDA
)
TOO_LARGE = (  # ROCm/TheRock#1054
    "HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.24 GiB of which 15.09 GiB is "
    "free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
    + _HIP
)
OLD = (  # pytorch/pytorch#59778
    "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already allocated; "
    "3.03 GiB free; 1.24 GiB reserved in total by PyTorch)"
)
OF_THE_DRIVER = (  # deepbeepmeep/Wan2GP#1083
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
OF_NCCL = (  # the last error is that of NVIDIA/nccl#1235, the words around it are PyTorch's
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, unhandled cuda error, NCCL version 2.18.3\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 'out of memory'"
)
FAILS = """
class {0}(RuntimeError):
    pass


{0}.__module__ = "torch"
raise {0}({1!r})
"""


@pytest.mark.parametrize(
    ("message", "scale", "what", "hint"),
    [
        (FULL, "off", "the device is full: of its 23.7 GiB this rank's PyTorch uses 22.9 GiB, 11.1 MiB is free, and "
         "PyTorch needs 22 MiB more", "smaller batches with gradient accumulation, or activation checkpointing"),
        (FULL, "data", "the device is full: ", "--scale fsdp shards weights, gradients and optimizer states"),
        (FULL, "data --compress bf16", "the device is full: ", "hint: use smaller batches"),
        (IN_PIECES, "off", "the memory is fragmented: PyTorch needs 6.6 GiB, and holds 7.1 GiB of unused memory",
         "echelon run --env PYTORCH_HIP_ALLOC_CONF=expandable_segments:True …"),
        (HELD_BY_OTHERS, "data", "of the device's 79.2 GiB other processes hold 40.4 GiB (process 4711), and this "
         "rank's PyTorch holds 36.6 GiB and needs 2 GiB more", "nvidia-smi lists them"),
        (OF_THE_DRIVER, "off", "the device had no memory left for the driver or for NCCL",
         "find other processes on the device (nvidia-smi)"),
        (OF_NCCL, "off", "the device had no memory left", "set_per_process_memory_fraction(0.9)"),
    ],
    ids=["full", "full-and-scaled", "full-and-compressed", "in-pieces", "held-by-others", "of-the-driver", "of-nccl"],
)  # fmt: skip
def test_rank_without_memory_is_explained(shell: Shell, message: str, scale: str, what: str, hint: str) -> None:
    """Two lines below the failure: what PyTorch's numbers mean, and what to do."""
    shell.script(FAILS.format("OutOfMemoryError" if "Tried" in message else "AcceleratorError", message))
    done = shell.fork("--scale", *scale.split(), "train.py")
    assert done.exit_code == 1
    lines = done.said.splitlines()
    place = next(n for n, line in enumerate(lines) if line.endswith("failed first: out of memory"))
    assert lines[place + 1].startswith(f"  memory: {what}")
    assert lines[place + 2].startswith("  hint: ")
    assert hint in lines[place + 2]
    assert lines[place + 3].startswith("  log: ")


@pytest.mark.parametrize(
    ("message", "what", "hint"),
    [
        (OWN_NUMBER_IN_A_CONTAINER, "the device is full: ", "smaller batches"),
        (
            ALLOWED,
            "the script limits itself to 1 GiB of the device's 256 GiB, PyTorch holds 1 GiB",
            "memory_fraction(1.0)",
        ),
        (
            NOT_FULL,
            "PyTorch needed 2 MiB, and of the device's 288 GiB 203.5 GiB was free",
            "another process may have used the memory",
        ),
        (TOO_LARGE, "a single tensor needs 16 GiB, but the whole device has 15.2 GiB", "check the shape of the tensor"),
    ],
    ids=["own-number-in-a-container", "allowed", "not-full", "too-large"],
)
def test_reading(message: str, what: str, hint: str) -> None:
    """What the numbers of other messages say; this process is no other, whatever its number."""
    said = device_memory.explain("some line\n" + message + "\n", scale="off")
    assert [line.partition(": ")[0] for line in said] == ["memory", "hint"]
    assert what in said[0]
    assert hint in said[1]


def test_nothing_is_said_without_numbers() -> None:
    """Older messages, and the host's memory, are left as they are."""
    for text in (OLD, "MemoryError", "", "torch.OutOfMemoryError: CUDA out of memory."):
        assert device_memory.explain(text, scale="off") == [], text
