"""Begins as Horovod does: MPI says which rank this is, and a controller that is unknown ends the process.

See horovod/common/utils/env_parser.cc and operations.cc.
"""

import os
import sys

_OF_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def init():
    if os.environ.get("HOROVOD_CONTROLLER", "mpi").casefold() not in ("mpi", "gloo"):
        sys.stderr.write(
            "terminate called after throwing an instance of 'std::runtime_error'\n"
            "  what():  Unsupported controller type, only MPI and Gloo are supported\n"
        )
        sys.stderr.flush()
        os.abort()


def size():
    return next((int(os.environ[name]) for name in _OF_MPI if name in os.environ), 1)
