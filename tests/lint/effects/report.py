"""What one rank of a job sees, as one file; imported by the scripts that the jobs run."""

import json
import os
import sys

NAMES = ("MASTER_ADDR", "NODE_RANK", "TORCHELASTIC_RUN_ID", "TRITON_CACHE_DIR", "OMP_NUM_THREADS")


def write() -> None:
    """Write node, devices, cores, arguments and some variables."""
    devices = os.environ.get("ROCR_VISIBLE_DEVICES", "")
    seen = {
        "node": os.environ["SLURMD_NODENAME"],
        "devices": len(devices.split(",")) if devices else 0,
        "cores": sorted(os.sched_getaffinity(0)),
        "args": sys.argv[1:],
        "variables": {name: os.environ[name] for name in NAMES if name in os.environ},
    }
    with open(f"{os.environ['SEEN']}/{os.environ['SLURM_JOB_ID']}-{seen['node']}-{os.getpid()}.json", "w") as file:
        json.dump(seen, file)


if __name__ == "__main__":
    write()
