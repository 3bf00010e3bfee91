"""Tables of gpu_metrics, built from the structs of the kernel's kgd_pp_interface.h by C's own alignment.

Each struct is the list of its fields as the header has them; ctypes places them. What is not set is full of ones, as
the kernel fills a table before it writes what it knows.
"""

import ctypes
from functools import cache
from typing import Any

U8, U16, U32, U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64
Fields = list[tuple[str, Any]]

HEADER: Fields = [("structure_size", U16), ("format_revision", U8), ("content_revision", U8)]
TEMPERATURES: Fields = [(f"temperature_{name}", U16) for name in ("edge", "hotspot", "mem", "vrgfx", "vrsoc", "vrmem")]
ACTIVITIES: Fields = [(f"average_{name}_activity", U16) for name in ("gfx", "umc", "mm")]
AVERAGES: Fields = [
    (f"average_{name}_frequency", U16) for name in ("gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1")
]
CURRENTS: Fields = [
    (f"current_{name}", U16) for name in ("gfxclk", "socclk", "uclk", "vclk0", "dclk0", "vclk1", "dclk1")
]
V1_0: Fields = [
    *HEADER, ("system_clock_counter", U64), *TEMPERATURES, *ACTIVITIES, ("average_socket_power", U16),
    ("energy_accumulator", U32), *AVERAGES, *CURRENTS, ("throttle_status", U32), ("current_fan_speed", U16),
    ("pcie_link_width", U8), ("pcie_link_speed", U8),
]  # fmt: skip
V1_1: Fields = [
    *HEADER, *TEMPERATURES, *ACTIVITIES, ("average_socket_power", U16), ("energy_accumulator", U64),
    ("system_clock_counter", U64), *AVERAGES, *CURRENTS, ("throttle_status", U32), ("current_fan_speed", U16),
    ("pcie_link_width", U16), ("pcie_link_speed", U16), ("padding", U16), ("gfx_activity_acc", U32),
    ("mem_activity_acc", U32), ("temperature_hbm", U16 * 4),
]  # fmt: skip
V1_2: Fields = [*V1_1, ("firmware_timestamp", U64)]
V1_3: Fields = [
    *V1_2, ("voltage_soc", U16), ("voltage_gfx", U16), ("voltage_mem", U16), ("padding1", U16),
    ("indep_throttle_status", U64),
]  # fmt: skip
NEW_HEAD: Fields = [
    *HEADER, ("temperature_hotspot", U16), ("temperature_mem", U16), ("temperature_vrsoc", U16),
    ("curr_socket_power", U16), ("average_gfx_activity", U16), ("average_umc_activity", U16),
]  # fmt: skip
LINKS: Fields = [(name, U16) for name in ("pcie_link_width", "pcie_link_speed", "xgmi_link_width", "xgmi_link_speed")]
ACCUMULATED: Fields = [
    ("gfx_activity_acc", U32), ("mem_activity_acc", U32), ("pcie_bandwidth_acc", U64), ("pcie_bandwidth_inst", U64),
    ("pcie_l0_to_recov_count_acc", U64), ("pcie_replay_count_acc", U64), ("pcie_replay_rover_count_acc", U64),
]  # fmt: skip
NAKS: Fields = [("pcie_nak_sent_count_acc", U32), ("pcie_nak_rcvd_count_acc", U32)]
XGMI: Fields = [("xgmi_read_data_acc", U64 * 8), ("xgmi_write_data_acc", U64 * 8)]
CLOCKS: Fields = [
    ("firmware_timestamp", U64), ("current_gfxclk", U16 * 8), ("current_socclk", U16 * 4), ("current_vclk0", U16 * 4),
    ("current_dclk0", U16 * 4), ("current_uclk", U16),
]  # fmt: skip
COUNTED: Fields = [("energy_accumulator", U64), ("system_clock_counter", U64)]
STATUS: Fields = [("throttle_status", U32), ("gfxclk_lock_status", U32)]
RESIDENCIES: Fields = [
    (name, U32)
    for name in ("accumulation_counter", "prochot_residency_acc", "ppt_residency_acc", "socket_thm_residency_acc",
                 "vr_thm_residency_acc", "hbm_thm_residency_acc", "gfxclk_lock_status")
]  # fmt: skip


def _partition(num_jpeg: int, num_accumulated: int) -> Any:
    """Return struct amdgpu_xcp_metrics of one version, eight of which end a table."""
    fields = [
        ("gfx_busy_inst", U32 * 8), ("jpeg_busy", U16 * num_jpeg), ("vcn_busy", U16 * 4),
        *((f"accumulated_{index}", U64 * 8) for index in range(num_accumulated)),
    ]  # fmt: skip
    return type("Partition", (ctypes.Structure,), {"_fields_": fields}) * 8


def _ending(partitions: Any) -> Fields:
    return [("num_partition", U16), ("xcp_stats", partitions), ("pcie_lc_perf_other_end_recovery", U32)]


V1_4: Fields = [
    *NEW_HEAD, ("vcn_activity", U16 * 4), *COUNTED, *STATUS, *LINKS, *ACCUMULATED, *XGMI, *CLOCKS, ("padding", U16),
]  # fmt: skip
V1_5: Fields = [
    *NEW_HEAD, ("vcn_activity", U16 * 4), ("jpeg_activity", U16 * 32), *COUNTED, *STATUS, *LINKS, *ACCUMULATED, *NAKS,
    *XGMI, *CLOCKS, ("padding", U16),
]  # fmt: skip
V1_6: Fields = [
    *NEW_HEAD, *COUNTED, *RESIDENCIES, *LINKS, *ACCUMULATED, *NAKS, *XGMI, *CLOCKS, *_ending(_partition(32, 1)),
]  # fmt: skip
NEWEST: Fields = [
    *NEW_HEAD, ("mem_max_bandwidth", U64), *COUNTED, *RESIDENCIES, *LINKS, *ACCUMULATED, *NAKS, *XGMI,
    ("xgmi_link_status", U16 * 8), ("padding", U16), *CLOCKS,
]  # fmt: skip
STRUCTS: dict[tuple[int, int], Fields] = {
    (1, 0): V1_0, (1, 1): V1_1, (1, 2): V1_2, (1, 3): V1_3, (1, 4): V1_4, (1, 5): V1_5, (1, 6): V1_6,
    (1, 7): [*NEWEST, *_ending(_partition(32, 2))],
    (1, 8): [*NEWEST, *_ending(_partition(40, 4))],
}  # fmt: skip


@cache
def _struct(version: tuple[int, int]) -> Any:
    return type("Table", (ctypes.Structure,), {"_fields_": STRUCTS[version]})


def table(version: tuple[int, int], **values: Any) -> bytes:
    """Return a table of this version with these fields; a list fills the first elements of an array."""
    kind = _struct(version)
    content = kind.from_buffer_copy(b"\xff" * ctypes.sizeof(kind))
    heads = {"structure_size": ctypes.sizeof(kind), "format_revision": version[0], "content_revision": version[1]}
    for name, value in {**heads, **values}.items():
        if isinstance(value, list):
            for index, each in enumerate(value):
                getattr(content, name)[index] = each
        else:
            setattr(content, name, value)
    return bytes(content)
