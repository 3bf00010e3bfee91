"""Say which rank this is, where it runs and which devices it was given.

Usage: echelon run -n 4 hello.py
"""

import os
import platform

rank, ranks = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
masks = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
devices = next((os.environ[mask] for mask in masks if mask in os.environ), "all")
cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
print(f"rank {rank} of {ranks} on {platform.node()}, cores {cores}, devices {devices or 'none'}", flush=True)
