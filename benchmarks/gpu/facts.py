"""Facts of this machine, read by the measured Python in a process of its own."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

_ASK = """
import importlib.util, json, platform
found = {"python": platform.python_version(), "missing": [], "devices": [], "torch": "", "build": "", "nccl": ""}
for name in ("numpy", "transformers", "lightning"):
    if importlib.util.find_spec(name) is None:
        found["missing"].append(name)
if importlib.util.find_spec("torch") is None:
    found["missing"].insert(0, "torch")
else:
    import torch
    found["torch"] = torch.__version__
    found["build"] = "CUDA " + torch.version.cuda if torch.version.cuda else (
        "ROCm " + torch.version.hip if torch.version.hip else "the CPU")
    if torch.cuda.is_available():
        found["devices"] = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A Python, its torch and its devices."""

    python: str
    torch: str
    """Empty where there is none."""
    build: str
    """What torch was built for: "CUDA 12.6", "ROCm 6.2" or "the CPU"."""
    nccl: str
    devices: tuple[str, ...]
    missing: tuple[str, ...]
    """Packages that rows would import."""

    def why_not(self) -> str:
        """Return what is missing so that nothing can be shown on a GPU; empty where it can."""
        if not self.torch:
            return "torch is missing: make gpu PYTHON=/path/to/a/python/with/torch"
        if self.build == "the CPU":
            return (
                f"no NVIDIA or AMD GPU can be used: torch {self.torch} is a build for the CPU, "
                "and PYTHON=… must name a Python whose torch is built for CUDA or ROCm"
            )
        return "" if self.devices else f"no NVIDIA or AMD GPU is here that torch {self.torch} ({self.build}) can use"


def ask(python: str) -> Facts:
    """Ask a Python."""
    done = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return Facts(**{**answer, "devices": tuple(answer["devices"]), "missing": tuple(answer["missing"])})
