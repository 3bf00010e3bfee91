"""Find whether this process has started a device's driver: a fork of it cannot use the device then.

NVML only reads, and a fork is safe after it. But since driver 580, NVML also opens /dev/nvidia-uvm and keeps a thread
(seen with driver 580.159 on an H200), so that files and threads do not tell it from CUDA. CUDA's own library does.
"""

import ctypes
import os
from typing import List

DEVICE_FILES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/")
"""The files that a running driver has open."""
NVML_THREADS = "cuda"
"""The names of NVML's threads begin with this, as those of CUDA do."""
_OF_CUDA = "/dev/nvidia-uvm"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED, of every function of cuda.h that precedes cuInit()


def open_files() -> List[str]:
    """Return the device files that a driver in this process has open; those of NVML do not count."""
    paths = set()
    for descriptor in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            paths.add(os.readlink("/proc/self/fd/" + descriptor))
        except OSError:
            continue  # the descriptor of this listdir()
    found = sorted(path for path in paths if path.startswith(DEVICE_FILES))
    if any(path.startswith(_OF_CUDA) for path in found) and not has_cuda_begun():
        return [path for path in found if not path.startswith(_OF_CUDA)]
    return found


def has_cuda_begun() -> bool:
    """Say whether cuInit() has run in this process; the library is asked, and not loaded for that."""
    try:
        library = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return library.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED  # type: ignore[no-any-return]
