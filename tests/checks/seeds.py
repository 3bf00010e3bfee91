"""Misconfigurations, each made in a node that is otherwise as it should be."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.checks.nodes import GIB
from tests.topology import trees

from echelon.hardware.answers import Health
from echelon.node.survey.nouns import Quota, Survey

LUMI, PART, DGX, ROIHU, PUHTI, DESK, VM = (
    "LUMI, a whole node", "LUMI, two devices", "DGX A100, a whole node", "Roihu, a whole node", "Puhti, a whole node",
    "a workstation", "a virtual machine without devices",
)  # fmt: skip
Change = Callable[[Survey], Survey]


@dataclass(frozen=True, kw_only=True)
class Seed:
    """One thing that is wrong, and what must be said of it."""

    name: str
    node: str = LUMI
    check: str
    severity: str
    says: str
    """Part of the message."""
    remedy: str
    """Part of the remedy."""
    environ: Mapping[str, str | None] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tree: Callable[[trees.Tree], None] | None = None
    """What is changed in the files of the node."""
    packages: tuple[str, ...] = ()
    """Records in the folder where Python looks for packages."""
    change: Change | None = None
    """What no file can show: limits of a process, a clock, connections."""
    wanted: Mapping[str, Any] = field(default_factory=dict)
    num_nodes: int = 1
    is_one: bool = False
    """Whether one node of several has it, and shall be left out or named."""


def env(name: str, /, check: str, severity: str, says: str, remedy: str, **rest: Any) -> Seed:
    """Return a seed that lies in the environment."""
    return Seed(name=name, check=check, severity=severity, says=says, remedy=remedy, **rest)


def limits(**values: int | bool) -> Change:
    return lambda survey: survey._replace(limits=survey.limits._replace(**values))


def cores(**values: Any) -> Change:
    return lambda survey: survey._replace(cores=survey.cores._replace(**values))


def network(**values: Any) -> Change:
    return lambda survey: survey._replace(network=survey.network._replace(**values))


def software(**values: Any) -> Change:
    return lambda survey: survey._replace(software=survey.software._replace(**values))


def quota(**values: Any) -> Change:
    """Change what `lfs quota` says of the project's folder."""

    def change(survey: Survey) -> Survey:
        fine = Quota(
            owner="project", mount="/scratch", used_bytes=9 << 40, soft_bytes=0, limit_bytes=50 << 40,
            used_files=100_000, soft_files=0, limit_files=2_000_000, command="lfs quota -h -p 4711 /scratch",
        )  # fmt: skip
        quotas = survey.quotas._replace(quotas=(fine._replace(**values),))
        return survey._replace(quotas=quotas, answered=(*survey.answered, "quotas"))

    return change


def health(**values: Any) -> Change:
    """Change what the third device says of itself, as nvidia-smi tells it."""

    def change(survey: Survey) -> Survey:
        found = [
            Health(each.pci, 500 << 20, 0, 0, "", (), 16, 16, ()) for each in survey.devices.devices if each.is_allowed
        ]
        found[2] = found[2]._replace(**values)
        healths = survey.healths._replace(devices=tuple(found), source="nvidia-smi")
        return survey._replace(healths=healths, answered=(*survey.answered, "healths"))

    return change


def devices(**values: Any) -> Change:
    """Change the first device."""

    def change(survey: Survey) -> Survey:
        first, *rest = survey.devices.devices
        return survey._replace(devices=survey.devices._replace(devices=(first._replace(**values), *rest)))

    return change


def write(path: str, text: object) -> Callable[[trees.Tree], None]:
    return lambda tree: tree.write(path, text)


def remove(path: str) -> Callable[[trees.Tree], None]:
    return lambda tree: Path(tree.root / path).unlink()


def down(*names: str) -> Callable[[trees.Tree], None]:
    def change(tree: trees.Tree) -> None:
        for name in names:
            tree.write(f"sys/class/net/{name}/operstate", "down")

    return change


SECOND = "sys/bus/pci/devices/0000:c9:00.0"  # LUMI's device 2
KFD = "sys/class/kfd/kfd"


def _used_by_other(tree: trees.Tree) -> None:
    tree.write(f"{KFD}/proc/4711/vram_50002", 9 << 30)
    tree.write("proc/4711/comm", "python3")
    tree.write(f"{SECOND}/mem_info_vram_used", 9 << 30)


def _narrow(tree: trees.Tree) -> None:
    tree.write(f"{SECOND}/current_link_width", 8)
    tree.write(f"{SECOND}/max_link_width", 16)


VISIBILITY = (
    env("ROCr and HIP filters on top of each other", "visibility", "warning", "both set", "unset HIP_VISIBLE_DEVICES",
        environ={"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "0,1"}),
    env("a HIP filter that counts past what ROCr left", "visibility", "error", "both set", "unset HIP_VISIBLE_DEVICES",
        environ={"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "4,5"}),
    env("ROCr's and CUDA's filter on AMD", "visibility", "warning", "both set", "unset CUDA_VISIBLE_DEVICES",
        environ={"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0"}),
    env("HIP's and CUDA's filter differ on AMD", "visibility", "warning", "differ", "unset CUDA_VISIBLE_DEVICES",
        environ={"HIP_VISIBLE_DEVICES": "0,1", "CUDA_VISIBLE_DEVICES": "2,3"}),
    env("a third filter", "visibility", "warning", "GPU_DEVICE_ORDINAL", "unset GPU_DEVICE_ORDINAL",
        environ={"GPU_DEVICE_ORDINAL": "0"}),
    env("a filter that hides all", "visibility", "error", "hides all devices", "unset CUDA_VISIBLE_DEVICES", node=DGX,
        environ={"CUDA_VISIBLE_DEVICES": ""}),
    env("a filter of -1", "visibility", "error", "hides all devices", "unset ROCR_VISIBLE_DEVICES",
        environ={"ROCR_VISIBLE_DEVICES": "-1"}),
    env("a filter that names a device twice", "visibility", "error", "twice", "export CUDA_VISIBLE_DEVICES=0,1",
        node=DGX, environ={"CUDA_VISIBLE_DEVICES": "0,1,1"}),
    env("a filter with a number that is not there", "visibility", "error", "names 8", "=0,1,2,3,4,5,6,7", node=DGX,
        environ={"CUDA_VISIBLE_DEVICES": "1,2,3,4,5,6,7,8"}),
    env("a filter of the whole node in a part of it", "visibility", "error", "names 6", "ROCR_VISIBLE_DEVICES=0,1",
        node=PART, environ={"ROCR_VISIBLE_DEVICES": "6,7"}),
    env("a unique number of another node's device", "visibility", "error", "GPU-dead", "export ROCR_VISIBLE_DEVICES",
        environ={"ROCR_VISIBLE_DEVICES": "GPU-dead00000000beef"}),
    env("AMD's filter on NVIDIA", "visibility", "warning", "no NVIDIA device heeds", "export CUDA_VISIBLE_DEVICES=0",
        node=PUHTI, environ={"ROCR_VISIBLE_DEVICES": "0"}),
)  # fmt: skip

DEVICES = (
    env("one of eight devices is missing on one node", "devices", "error", "only 7 of them", "--exclude=nid005002",
        options={"devices": (0, 1, 2, 3, 4, 5, 6)}, num_nodes=4, is_one=True),
    env("more ranks than the filter leaves devices", "devices", "error", "8 ranks, but only 4 of 8 devices",
        "unset ROCR",
        environ={"ROCR_VISIBLE_DEVICES": "0,1,2,3"}, wanted={"ranks_per_node": 8}),
    env("a device with half of its memory", "devices", "error", "has 32 GiB of 64 GiB", "--exclude=",
        tree=write(f"{KFD}/topology/nodes/6/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {32 * GIB}")),
    env("devices of two kinds", "devices", "warning", "several kinds", "ask for a single kind", node=DGX,
        change=devices(model="NVIDIA A100-SXM4-80GB")),
    env("a driver that shows nothing of what was given", "devices", "warning", "sees none of them", "nvidia-smi",
        node=PUHTI, change=lambda survey: survey._replace(devices=survey.devices._replace(devices=(), visible=()))),
    env("memory errors that a device cannot correct", "health", "error", "device 2 has had memory errors", "--exclude=",
        tree=write(f"{SECOND}/ras/umc_err_count", "ue: 2\nce: 17")),
    env("memory errors that NVIDIA counts", "health", "error", "could not correct: 5", "--exclude=", node=DGX,
        change=health(uncorrected=5)),
    env("pages that wait to be retired", "health", "warning", "wait to be retired", "--exclude=", node=DGX,
        change=health(pending="pages of its memory wait to be retired")),
    env("a device that is too hot", "health", "warning", "device 2 runs at reduced speed: it is too hot",
        "--exclude=", node=DGX,
        change=health(throttled=("it is too hot",))),
    env("half of the PCIe lanes", "health", "warning", "device 2 has 8 of 16 PCIe lanes", "--exclude=",
        tree=_narrow),
    env("somebody else's process on a device", "occupied", "warning", "device 2 is in use by 4711 python3", "kill 4711",
        tree=_used_by_other),
    env("memory that nobody owns up to", "occupied", "warning", "but no process is visible", "--exclude=",
        tree=write(f"{SECOND}/mem_info_vram_used", 40 * GIB)),
)  # fmt: skip

CORES = (
    env("a mask of one core for eight ranks", "cores", "error", "8 ranks on 1 core", "--cpus-per-gpu=7",
        options={"cpus": "1"}),
    env("seven cores for eight ranks", "cores", "error", "8 ranks on 7 cores", "--cpus-per-gpu=7",
        options={"cpus": "1-7"}),
    env("half of the share of cores", "cores", "warning", "8 cores for 2 ranks, but the share of each device is 7",
        "--cpus-per-gpu=7", node=PART, options={"cpus": "17-20,25-28", "devices": (2, 3)}),
    env("a quota below the mask", "cores", "warning", "the cgroup gives the time of 8 cores", "OMP_NUM_THREADS=1",
        node=DGX, change=cores(num_usable=8)),
    env("other work on the node", "cores", "warning", "other programs keep the node busy", "pgrep", node=DGX,
        tree=write("proc/loadavg", "300.1 280.0 200.0 301/900 1")),
    env("cores at the other end of the node", "distance", "warning", "no core near devices 2,3", "--cpus-per-gpu",
        node=PART, options={"cpus": "33-39,41-47", "devices": (2, 3)}),
    env("cores of one socket for devices of both", "distance", "warning", "no core near devices 2,3",
        "--cpus-per-gpu", node=PUHTI, options={"cpus": "0-19"}),
    env("all cores as threads of every rank", "threads", "warning", "56 × 8 = 448 threads", "OMP_NUM_THREADS=7",
        environ={"OMP_NUM_THREADS": "56"}),
    env("MKL's threads", "threads", "warning", "MKL_NUM_THREADS × ranks", "export MKL_NUM_THREADS=10", node=PUHTI,
        environ={"MKL_NUM_THREADS": "40"}),
    env("a number of threads that is none", "threads", "warning", "not a number of threads", "export OMP_NUM_THREADS=7",
        environ={"OMP_NUM_THREADS": "$CPUS"}),
    env("the same cores for the threads of all ranks", "threads", "warning", "names the same cores",
        "unset GOMP_CPU_AFFINITY",
        environ={"GOMP_CPU_AFFINITY": "0-6"}),
    env("memory from another domain than the cores", "memory", "warning", "memory may come only from 0", "--mem-bind",
        tree=write("proc/self/status", f"Cpus_allowed_list:\t{trees.LUMI_USABLE}\nMems_allowed_list:\t0")),
    env("numactl --membind around all ranks", "memory", "warning", "bound to NUMA domain 0", "numactl --localalloc",
        tree=write("proc/self/numa_maps", "55d0c0000000 bind:0 file=/usr/bin/python3 mapped=2 N0=2")),
    env("a memory limit of 16 GiB for eight devices", "memory", "warning", "16 GiB of memory for 8 ranks",
        "--mem-per-gpu=60G",
        tree=write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/memory.max", 16 * GIB)),
    env("memory that an earlier job has left full", "memory", "warning", "other programs use the memory", "/dev/shm",
        node=DGX, tree=write("proc/meminfo", f"MemTotal: {1 << 30} kB\nMemAvailable: {1 << 20} kB")),
)  # fmt: skip

NETWORK = (
    env("an interface that is not there", "interfaces", "error", "matches no interface of the node",
        "export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3", environ={"NCCL_SOCKET_IFNAME": "ib0"}, num_nodes=4),
    env("an exact name where a prefix was meant", "interfaces", "error", "=hsn matches no interface",
        "export NCCL_SOCKET_IFNAME=hsn0", environ={"NCCL_SOCKET_IFNAME": "=hsn"}, num_nodes=4),
    env("a prefix for gloo, which wants a name", "interfaces", "error", "GLOO_SOCKET_IFNAME=hsn matches no interface",
        "export GLOO_SOCKET_IFNAME=hsn0", environ={"GLOO_SOCKET_IFNAME": "hsn"}, num_nodes=4),
    env("the management network", "interfaces", "warning", "chooses nmn0, but the fast network is hsn0",
        "export NCCL_SOCKET_IFNAME=hsn0", environ={"NCCL_SOCKET_IFNAME": "nmn0"}, num_nodes=4),
    env("loopback for several nodes", "interfaces", "error", "only the node itself can be reached there",
        "GLOO_SOCKET_IFNAME=hsn0",
        environ={"GLOO_SOCKET_IFNAME": "lo"}, num_nodes=4),
    env("an interface that is down", "interfaces", "error", "chooses hsn0: down", "export NCCL_SOCKET_IFNAME=hsn1",
        environ={"NCCL_SOCKET_IFNAME": "=hsn0"}, tree=down("hsn0"), num_nodes=4),
    env("one of four links is down on one node", "interfaces", "warning", "hsn2 of the fast network is down",
        "--exclude=nid005002", tree=down("hsn2"), num_nodes=4, is_one=True),
    env("a link of half the speed", "interfaces", "warning", "hsn3 has a link of 100 Gbit/s, others 200", "--exclude=",
        tree=write("sys/class/net/hsn3/speed", 100_000), num_nodes=4),
    env("InfiniBand cards of another node type", "interfaces", "error", "chooses no card", "unset NCCL_IB_HCA",
        node=DGX, environ={"NCCL_IB_HCA": "mlx5_15,mlx5_14"}, num_nodes=4),
    env("NCCL left to find an interface", "fast network", "warning", "NCCL_SOCKET_IFNAME is not set",
        "export NCCL_SOCKET_IFNAME=hsn0", environ={"NCCL_SOCKET_IFNAME": None}, num_nodes=4),
    env("InfiniBand switched off", "fast network", "warning", "the collectives use sockets", "unset NCCL_IB_DISABLE",
        node=DGX,
        environ={"NCCL_IB_DISABLE": "1"}, num_nodes=4),
    env("a socket asked for in place of the plugin", "fast network", "warning", "a setting asks for sockets",
        "unset NCCL_NET", environ={"NCCL_NET": "Socket"}, num_nodes=4),
    env("libfabric over TCP", "fast network", "warning", "instead of Slingshot's cxi", "export FI_PROVIDER=cxi",
        environ={"FI_PROVIDER": "tcp"}, num_nodes=4),
    env("RDMA into device memory switched off", "fast network", "warning", "switches RDMA", "unset NCCL_NET_GDR_LEVEL",
        environ={"NCCL_NET_GDR_LEVEL": "LOC"}, num_nodes=4),
    env("a level that hangs on many nodes", "fast network", "warning", "crashes or hangs", "NCCL_NET_GDR_LEVEL",
        environ={"NCCL_NET_GDR_LEVEL": "PHB"}, num_nodes=4, wanted={"num_nodes": 512}),
    env("peer access switched off", "fast network", "warning", "through the host's memory", "unset NCCL_P2P_DISABLE",
        node=DGX, environ={"NCCL_P2P_DISABLE": "1"}),
    env("shared memory switched off", "fast network", "warning", "over the network", "unset NCCL_SHM_DISABLE", node=DGX,
        environ={"NCCL_SHM_DISABLE": "1"}),
    env("no plugin for Slingshot", "plugin", "warning", "the collectives use sockets", "module load aws-ofi",
        environ={"LD_LIBRARY_PATH": None}, num_nodes=4),
    env("a plugin that the loader does not find", "plugin", "error", "NCCL_NET_PLUGIN=aws", "unset NCCL_NET_PLUGIN",
        environ={"NCCL_NET_PLUGIN": "aws-ofi"}, num_nodes=4),
    env("no plugin wanted on Slingshot", "plugin", "warning", "Slingshot needs a plugin",
        "unset NCCL_NET_PLUGIN", environ={"NCCL_NET_PLUGIN": "none"}, num_nodes=4),
    env("an image from elsewhere", "container", "warning", "the image has no plugin", "the machine's own image",
        environ={"LD_LIBRARY_PATH": None, "SINGULARITY_CONTAINER": "/scratch/rocm.sif"}, num_nodes=4),
    env("nothing bound into the image", "binds", "warning", "not bound into the container: /var/spool", "--bind",
        environ={"APPTAINER_CONTAINER": "/scratch/rocm.sif"}),
    env("a name that does not resolve", "names", "error", "does not resolve", "GLOO_SOCKET_IFNAME",
        change=network(hostname="nid005000", addresses=()), num_nodes=4),
    env("a name that means loopback", "names", "warning", "resolves to its loopback", "GLOO_SOCKET_IFNAME=hsn0",
        change=lambda survey: survey._replace(
            node="nid005002", network=survey.network._replace(hostname="nid005002", addresses=("127.0.1.1",))),
        num_nodes=4, is_one=True),
)  # fmt: skip

FILES = (
    env("MIOpen's database on Lustre", "caches", "warning", "MIOpen's database: on lustre",
        "export MIOPEN_USER_DB_PATH=/tmp/", environ={"MIOPEN_USER_DB_PATH": "/scratch/me/miopen"}),
    env("MIOpen's kernels in the home folder", "caches", "warning", "MIOpen's kernels: on lustre",
        "export MIOPEN_CUSTOM_CACHE_DIR=/tmp/", environ={"MIOPEN_CUSTOM_CACHE_DIR": None}),
    env("Triton's kernels in the home folder", "caches", "warning", "Triton's kernels: on lustre",
        "export TRITON_CACHE_DIR=/tmp/", environ={"TRITON_CACHE_DIR": None}, num_nodes=4),
    env("temporary files on Lustre", "caches", "warning", "temporary files: on lustre", "export TMPDIR=/tmp",
        environ={"TMPDIR": "/scratch/me/tmp"}),
    env("a command in place of a variable", "caches", "error", "holds an unexpanded placeholder",
        "MIOPEN_USER_DB_PATH=/tmp",
        environ={"MIOPEN_USER_DB_PATH": "/tmp/$(whoami)-miopen-$(NODEID)"}),
    env("a path that is not one from the root", "caches", "warning", "is a relative path", "export TRITON_CACHE",
        environ={"TRITON_CACHE_DIR": "cache/triton"}),
    env("a cache that cannot be written", "caches", "error", "cannot write to /etc/", "export HF_HOME=/tmp",
        environ={"HF_HOME": "/etc/hostname/huggingface"}),
    env("no room for checkpoints", "room", "warning", "has room for 3 GiB: checkpoints go there", "du -xsh",
        change=lambda survey: survey._replace(folders=survey.folders._replace(folders=tuple(
            each._replace(free_bytes=3 * GIB) if each.purpose == "checkpoints" else each
            for each in survey.folders.folders)))),
    env("no more files on a full file system", "room", "error", "has room for 0 more files", "du -xsh",
        change=lambda survey: survey._replace(folders=survey.folders._replace(folders=tuple(
            each._replace(free_files=0) for each in survey.folders.folders)))),
    env("a project's quota that is used up", "quota", "error", "the project's quota of bytes on /scratch is used up",
        "lfs quota -h -p 4711 /scratch", change=quota(used_bytes=50 << 40), num_nodes=4),
    env("a user's quota that is nearly used up", "quota", "warning", "the user's quota of bytes on /scratch is nearly",
        "lfs quota", change=quota(owner="user", used_bytes=(50 << 40) - GIB)),
    env("a soft limit that was passed", "quota", "warning", "above its soft limit", "lfs quota",
        change=quota(soft_bytes=30 << 40, used_bytes=31 << 40)),
    env("a quota of files that is used up", "quota", "error", "quota of files on /scratch is used up", "lfs quota",
        change=quota(used_files=2_000_000)),
    env("a folder for checkpoints that cannot be written", "room", "error", "this node cannot write checkpoints",
        "cd to",
        change=lambda survey: survey._replace(folders=survey.folders._replace(folders=tuple(
            each._replace(is_writable=each.purpose != "checkpoints") for each in survey.folders.folders)))),
)  # fmt: skip

LIMITS = (
    env("64 KiB of locked memory", "limits", "error", "the limit for locked memory is 64 KiB", "ulimit -l unlimited",
        change=limits(locked_bytes=65536), num_nodes=4),
    env("256 open files", "limits", "warning", "the limit is 256 open files", "ulimit -n 65536",
        change=limits(open_files=256)),
    env("open files that cannot be raised", "limits", "warning", "the limit is 256 open files", "the support",
        change=limits(open_files=256, open_files_most=256)),
    env("few processes", "limits", "warning", "512 processes and threads", "ulimit -u", change=limits(processes=512)),
    env("docker's own /dev/shm", "limits", "warning", "/dev/shm has 64 MiB for 4 ranks", "--shm-size", node=PUHTI,
        change=limits(shared_bytes=64 << 20, shared_free_bytes=64 << 20)),
    env("a /dev/shm that is full", "limits", "warning", "/dev/shm has 128 MiB left", "ls -lS /dev/shm",
        change=limits(shared_free_bytes=128 << 20)),
    env("no /dev/shm", "limits", "error", "/dev/shm is missing", "--bind /dev/shm",
        change=limits(shared_bytes=0, shared_free_bytes=0)),
)  # fmt: skip

NAMES = (
    env("a misspelt MIOpen variable", "spelling", "warning", "programs read MIOPEN_CUSTOM_CACHE_DIR",
        "export MIOPEN_CUSTOM_CACHE_DIR=/tmp/x", environ={"MIOPEN_CUSTOM_CACHE_PATH": "/tmp/x"}),
    env("two letters changed places", "spelling", "warning", "nothing reads NCLL_DEBUG", "export NCCL_DEBUG=INFO",
        environ={"NCLL_DEBUG": "INFO"}),
    env("a letter too many", "spelling", "warning", "programs read NCCL_SOCKET_IFNAME", "unset NCCL_SOCKET_IFNAMES",
        environ={"NCCL_SOCKET_IFNAMES": "hsn0"}),
    env("a letter too few", "spelling", "warning", "programs read OMP_NUM_THREADS", "export OMP_NUM_THREADS=7",
        environ={"OMP_NUM_THREAD": "7"}),
    env("a filter without its S", "spelling", "warning", "programs read CUDA_VISIBLE_DEVICES",
        "export CUDA_VISIBLE_DEVICES",
        node=PUHTI, environ={"CUDA_VISIBLE_DEVICE": "0"}),
    env("every kernel waited for", "slowing", "warning", "the program waits for each kernel",
        "unset CUDA_LAUNCH_BLOCKING",
        node=DGX, environ={"CUDA_LAUNCH_BLOCKING": "1"}),
    env("every kernel of AMD waited for", "slowing", "warning", "the program waits for each kernel",
        "unset AMD_SERIALIZE",
        environ={"AMD_SERIALIZE_KERNEL": "3"}),
    env("copies by kernels", "slowing", "warning", "kernels make copies", "unset HSA_ENABLE_SDMA",
        environ={"HSA_ENABLE_SDMA": "0"}),
    env("each collective checked by another", "slowing", "warning", "a second collective checks",
        "unset TORCH_DISTRIBUTED",
        environ={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}),
    env("one log file for all ranks", "slowing", "warning", "all ranks write into one file", "%h.%p",
        environ={"NCCL_DEBUG_FILE": "/tmp/nccl.log"}),
    env("torch without devices", "torch build", "error", "is built without device support", "the build for rocm",
        packages=("torch-2.13.0+cpu",)),
    env("torch for NVIDIA on AMD", "torch build", "error", "built for NVIDIA devices", "the build for rocm",
        packages=("torch-2.13.0+cu128",)),
    env("torch for AMD on NVIDIA", "torch build", "error", "built for AMD devices", "the build for cu", node=DGX,
        packages=("torch-2.13.0+rocm6.4",)),
    env("torch from the home folder inside an image", "container", "warning", "not from the image", "PYTHONNOUSERSITE",
        environ={"SINGULARITY_CONTAINER": "/scratch/rocm.sif"},
        change=software(packages={"torch": "2.1+rocm6"}, places={"torch": "/users/me/.local/lib/python3.10"})),
)  # fmt: skip

BETWEEN = (
    env("a clock that is ahead", "clocks", "warning", "its clock is 7 s ahead", "--exclude=nid005002", num_nodes=4,
        change=lambda survey: survey._replace(ahead_seconds=7.0), is_one=True),
    env("a clock that is an hour behind", "clocks", "error", "3600 s behind", "--exclude=nid005002", num_nodes=4,
        change=lambda survey: survey._replace(ahead_seconds=-3600.0), is_one=True),
    env("a clock that was never set", "clocks", "error", "never set", "--exclude=nid005002", num_nodes=4,
        change=lambda survey: survey._replace(time=86400.0), is_one=True),
    env("another version of torch", "versions", "error", "torch is 2.6.0; on most nodes it is 2.13.0",
        "--exclude=nid005002",
        num_nodes=4, packages=("torch-2.13.0",), is_one=True,
        change=software(packages={"torch": "2.6.0"})),
    env("torch missing on one node", "versions", "error", "torch is missing", "where every node sees it", num_nodes=4,
        packages=("torch-2.13.0",), is_one=True, change=software(packages={})),
    env("another Python", "versions", "error", "Python is 3.6.15", "--exclude=nid005002", num_nodes=4, is_one=True,
        change=software(python="3.6.15")),
    env("another driver", "versions", "warning", "driver is 6.3.6", "--exclude=nid005002", num_nodes=4, is_one=True,
        change=software(driver="6.3.6")),
    env("less memory on one node", "alike", "warning", "about 256 GiB", "--exclude=nid005002", num_nodes=4, is_one=True,
        change=cores(memory_bytes=256 * GIB)),
    env("fewer cores on one node", "alike", "warning", "49 cores may be used", "--exclude=nid005002", num_nodes=4,
        is_one=True, change=cores(num_usable=49)),
    env("a setting of one node's start-up files", "settings", "warning",
        "FI_PROVIDER is not set; on most nodes it is cxi",
        "echelon run --env FI_PROVIDER=cxi", num_nodes=4, is_one=True, environ={"FI_PROVIDER": "cxi"},
        change=lambda survey: survey._replace(settings=survey.settings._replace(variables={
            name: value for name, value in survey.settings.variables.items() if name != "FI_PROVIDER"}))),
    env("a node that others cannot reach", "reach", "error", "cannot be reached by other nodes: Connection refused",
        "--exclude=", num_nodes=4,
        change=lambda survey: survey._replace(unreached={"nid005001": "Connection refused"})),
    env("a node that reaches nobody", "reach", "error", "cannot reach other nodes: no answer within 3 s",
        "--exclude=nid005002", num_nodes=4, is_one=True,
        change=lambda survey: survey._replace(unreached={
            "nid005000": "no answer within 3 s", "nid005001": "no answer within 3 s"})),
    env("a name that other nodes do not know", "reach", "error", "does not resolve", "getent hosts nid005001",
        num_nodes=4, change=lambda survey: survey._replace(
            unreached={"nid005001": "the name nid005001 does not resolve"})),
    env("a node that does not answer", "answers", "error", "the node does not answer", "--exclude=nid005002",
        num_nodes=4, is_one=True,
        change=lambda survey: Survey(survey.node, silent={"node": "did not answer"})),
)  # fmt: skip

SEEDS = (*VISIBILITY, *DEVICES, *CORES, *NETWORK, *FILES, *LIMITS, *NAMES, *BETWEEN)
