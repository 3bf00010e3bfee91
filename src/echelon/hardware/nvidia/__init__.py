"""NVIDIA: devices that CUDA counts, the files of its driver, and its libraries and tools."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from .. import files
from ..vendor import Cache, Interconnect, Vendor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..answers import Device, Healths, Listing, Readings, Sampled

_DRIVER = "proc/driver/nvidia"


class Nvidia(Vendor):
    """NVIDIA's devices."""

    name = "nvidia"
    title = "NVIDIA"
    filters = (("CUDA_VISIBLE_DEVICES",),)
    filters_page = "CUDA programming guide: environment variables"
    torch_word = "cuda"
    toolkit = "CUDA"
    build = "cu"
    packages = ("nvidia-nccl-cu12",)
    users_command = "nvidia-smi"
    container_options = ("--nv", "--nvccli")
    image_needs_option = True
    chips = r"nvidia|tesla|geforce|gtx|rtx|quadro|titan|[abhlvpk]\d{1,3}(s|_|$)|gh?b?200|gb300|t4|\d{4}ti|[1-5]0[5-9]0"
    control_file = "dev/nvidiactl"
    driver_files = ("/dev/nvidia-uvm",)
    interconnect = Interconnect(kind="nvlink", title="NVLink", sign="NV", legend="joined by # NVLinks")
    # CUDA's documentation: CUDA_CACHE_PATH
    caches = (Cache("CUDA's kernels", "CUDA_CACHE_PATH", "{home}/.nv/ComputeCache"),)

    def count(self, root: str) -> int:
        folder = os.path.join(root, "dev")
        names = [f"nvidia{number}" for number in files.numbers(folder, "nvidia")]
        count = sum(_is_character_device(os.path.join(folder, name)) for name in names)
        if count or not os.path.isdir(os.path.join(root, _DRIVER)):
            return count
        from . import cards

        # Before the first use after boot, device files may be missing, but the driver knows its cards.
        return len(cards.names(root))

    def read(self, root: str) -> Listing:
        from . import cards, package

        is_this_node = os.path.realpath(root) == "/"
        # It is worth starting NVML, which takes 10 ms and more, only where the driver is.
        has_driver = cards.names(root) or os.path.exists(os.path.join(root, self.control_file))
        return cards.read(root, package.module() if is_this_node and has_driver else None)

    def driver_version(self, root: str) -> str:
        # NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
        line = files.text(os.path.join(root, _DRIVER, "version")).partition("\n")[0]
        version = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", line)
        return version.group(1) if version else ""

    def read_health(self, root: str, devices: Sequence[Device], environ: Mapping[str, str]) -> Healths | None:
        from . import smi

        return smi.read_health(environ)

    def readings(self, root: str, devices: Sequence[Sampled], environ: Mapping[str, str]) -> Readings:
        from . import nvml  # ctypes takes memory, which other nodes do not need

        library = nvml.load()
        if library is None:
            from . import smi

            return smi.NvidiaSmi(devices, environ).read
        shown = {device.number: library.reader(device.pci, device.uuid) for device in devices}
        readers = {number: reader for number, reader in shown.items() if reader is not None}
        return lambda: {number: reader.read() for number, reader in readers.items()}


def _is_character_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


NVIDIA = Nvidia()
