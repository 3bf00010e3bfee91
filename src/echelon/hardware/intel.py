"""Intel: its words are known, its devices cannot be listed, because nobody has recorded the /sys of such a node."""

from .vendor import Vendor


class Intel(Vendor):
    """Intel's devices, which PyTorch calls XPU."""

    name = "intel"
    title = "Intel"
    filters = (("ZE_AFFINITY_MASK",),)
    torch_word = "xpu"
    toolkit = "oneAPI"
    build = "xpu"
    users_command = "xpu-smi ps"
    driver_files = ("/dev/dri/",)


INTEL = Intel()
