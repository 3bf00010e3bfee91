"""AMD: devices that HIP counts, and the files of the driver amdgpu."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .. import files
from ..vendor import Cache, Interconnect, Vendor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..answers import Device, Healths, Listing, Readings, Sampled


class Amd(Vendor):
    """AMD's devices, which PyTorch calls CUDA as well."""

    name = "amd"
    title = "AMD"
    # HIP counts among the devices that ROCr leaves, and reads CUDA's variable if its own is not set.
    filters = (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
    stray_filters = ("GPU_DEVICE_ORDINAL",)
    filters_page = "ROCm documentation: GPU isolation techniques"
    torch_word = "hip"
    toolkit = "ROCm"
    build = "rocm"
    can_expand_segments = False  # there is no word of its authors that all versions of ROCm have them
    users_command = "rocm-smi --showpids"
    container_options = ("--rocm",)
    cgroup_cuts_links = True
    chips = r"mi\d|amd|radeon|instinct"
    control_file = "dev/kfd"
    driver_files = ("/dev/kfd", "/dev/dri/")
    interconnect = Interconnect(
        kind="xgmi",
        title="xGMI",
        sign="XG",
        legend="joined by # xGMI links (no number: not known)",
        forwarded="xGMI by way of another device",
    )
    # MIOpen's documentation: cache directory
    caches = (
        Cache("MIOpen's database", "MIOPEN_USER_DB_PATH", "{home}/.config/miopen"),
        Cache("MIOpen's kernels", "MIOPEN_CUSTOM_CACHE_DIR", "{cache}/miopen"),
    )
    is_health_fast = True

    def count(self, root: str) -> int:
        from . import kfd

        return sum(device.is_allowed for device in kfd.nodes(root))

    def read(self, root: str) -> Listing:
        from . import kfd

        return kfd.read(root)

    def driver_version(self, root: str) -> str:
        return files.text(os.path.join(root, "sys/module/amdgpu/version"))

    def read_health(self, root: str, devices: Sequence[Device], environ: Mapping[str, str]) -> Healths | None:
        from . import health

        return health.read(root, devices)

    def readings(self, root: str, devices: Sequence[Sampled], environ: Mapping[str, str]) -> Readings:
        from .sampling import AmdReader

        readers = {device.number: AmdReader(root, device) for device in devices if device.pci}
        return lambda: {number: reader.read() for number, reader in readers.items()}


AMD = Amd()
