"""Read the kernel's limits for this process."""

import os
import resource

from .nouns import Limits

SHARED = "dev/shm"


def read(root: str) -> Limits:
    """Return the limits of this process, and the size of shared memory (/dev/shm)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    size = free = 0
    path = os.path.join(root, SHARED)
    try:
        status = os.statvfs(path)
        size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    except OSError:
        pass  # /dev/shm does not exist
    return Limits(
        locked_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        open_files=soft,
        open_files_most=hard,
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        stack_bytes=resource.getrlimit(resource.RLIMIT_STACK)[0],
        shared_bytes=size,
        shared_free_bytes=free,
        is_shared_writable=os.access(path, os.W_OK | os.X_OK),
    )
