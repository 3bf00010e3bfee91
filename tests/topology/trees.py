"""Trees of sysfs and procfs as documented nodes have them, whole or as a job sees a part of them.

Where the facts come from stands at each machine. What a job may not use is hidden as the kernel hides it: the
properties of a KFD node cannot be read (an empty file here), and an NVIDIA device file cannot be opened (it is missing
here: root may open anything).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from echelon.topology.cpus import parse_cpu_list

GIB = 1 << 30


@dataclass
class Tree:
    """A file tree that grows."""

    root: Path
    hostname: str = "node"
    numa_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.write("proc/sys/kernel/hostname", self.hostname)

    def write(self, path: str, text: object) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n" if str(text) else "")

    def cpus_file(self, path: str, cpus: str) -> None:
        """Write a set of hardware threads as the kernel does: as a list, and as a mask for those that read masks."""
        self.write(f"{path}_list", cpus)
        self.write(f"{path}_map" if path.endswith("shared_cpu") else path, masked(cpus))

    def link(self, path: str, target: str) -> None:
        """Make a link whose target is a path of the tree too."""
        source = self.root / path
        source.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (path.count("/"))
        source.symlink_to(up + target)

    def cpu(self, number: int, *, siblings: str, socket: int, sockets_cpus: str, cache: str) -> None:
        place = f"sys/devices/system/cpu/cpu{number}"
        self.cpus_file(f"{place}/topology/thread_siblings", siblings)
        self.write(f"{place}/topology/physical_package_id", socket)
        self.write(f"{place}/topology/core_id", min(parse_cpu_list(siblings)))
        self.cpus_file(f"{place}/topology/core_siblings", sockets_cpus)
        if cache:
            for index, shared in ((0, siblings), (3, cache)):
                self.write(f"{place}/cache/index{index}/level", index or 1)
                self.write(f"{place}/cache/index{index}/type", "Unified" if index else "Data")
                self.write(f"{place}/cache/index{index}/size", "32768K")
                self.cpus_file(f"{place}/cache/index{index}/shared_cpu", shared)

    def cpus(self, *, num_sockets: int, cores: int, per_cache: int, per_numa: int, threads: int) -> None:
        """Write processors whose second threads are numbered after all first ones, as Linux does on x86."""
        total = num_sockets * cores

        def with_siblings(low: int, high: int) -> str:
            return ",".join(f"{low + total * thread}-{high + total * thread}" for thread in range(threads))

        for core in range(total):
            socket, cache, numa = core // cores, core // per_cache, core // per_numa
            for thread in range(threads):
                self.cpu(
                    core + total * thread,
                    siblings=",".join(str(core + total * each) for each in range(threads)),
                    socket=socket,
                    sockets_cpus=with_siblings(socket * cores, (socket + 1) * cores - 1),
                    cache=with_siblings(cache * per_cache, (cache + 1) * per_cache - 1),
                )
                self.numa_of[core + total * thread] = numa
        self.write("sys/devices/system/cpu/online", f"0-{total * threads - 1}")

    def domains(self, distances: Mapping[int, Iterable[int]], memory_bytes: Mapping[int, int]) -> None:
        for number, row in distances.items():
            place = f"sys/devices/system/node/node{number}"
            mine = listed(cpu for cpu, numa in self.numa_of.items() if numa == number)
            self.write(f"{place}/cpulist", mine)
            self.write(f"{place}/cpumap", masked(mine))
            self.write(f"{place}/distance", " ".join(map(str, row)))
            self.write(f"{place}/meminfo", f"Node {number} MemTotal:       {memory_bytes.get(number, 0) // 1024} kB")

    def pci(self, path: str, *, numa: int, local: str | None = None) -> str:
        """Write a PCI device by its way from the root; return its address."""
        address = path.rsplit("/", 1)[-1]
        place = f"sys/devices/{path}"
        self.write(f"{place}/numa_node", numa)
        mine = listed(cpu for cpu, domain in self.numa_of.items() if domain == numa or numa < 0)
        self.write(f"{place}/local_cpulist", mine if local is None else local)
        self.link(f"sys/bus/pci/devices/{address}", place)
        return address

    def allow(self, cpus: str) -> None:
        """Write what the job's cgroup leaves, version 2."""
        self.write(
            "proc/self/status", f"Name:\tpython3\nCpus_allowed:\tff\nCpus_allowed_list:\t{cpus}\nMems_allowed:\t1"
        )
        self.write("proc/self/cgroup", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0")
        self.write("sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/cpuset.cpus.effective", cpus)

    def net(self, name: str, device: str, *, megabits: int, up: bool = True) -> None:
        self.write(f"sys/class/net/{name}/speed", megabits if up else "")
        self.write(f"sys/class/net/{name}/operstate", "up" if up else "down")
        self.link(f"sys/class/net/{name}/device", f"sys/devices/{device}")

    def verbs(self, name: str, device: str, *, rate: str, layer: str = "InfiniBand", state: str = "4: ACTIVE") -> None:
        port = f"sys/class/infiniband/{name}/ports/1"
        self.write(f"{port}/state", state)
        self.write(f"{port}/rate", rate)
        self.write(f"{port}/link_layer", layer)
        self.link(f"sys/class/infiniband/{name}/device", f"sys/devices/{device}")

    def kfd(self, number: int, properties: Mapping[str, int] | None, *, gpu_id: int, links: Iterable[str] = ()) -> None:
        """Write a KFD node; without properties it is one that the cgroup hides."""
        place = f"sys/class/kfd/kfd/topology/nodes/{number}"
        words = "\n".join(f"{key} {value}" for key, value in (properties or {}).items())
        self.write(f"{place}/properties", words)
        self.write(f"{place}/gpu_id", gpu_id if properties is not None else "")
        for index, link in enumerate(links):
            self.write(f"{place}/io_links/{index}/properties", link)

    def nvidia(
        self, minor: int, path: str, *, model: str, numa: int, is_allowed: bool, local: str | None = None
    ) -> None:
        address = self.pci(path, numa=numa, local=local)
        fields = (
            f"Model: \t\t {model}\nIRQ:   \t\t 128\nGPU UUID: \t {uuid(minor)}\nVideo BIOS: \t 92.00.45.00.03\n"
            f"Bus Type: \t PCIe\nBus Location: \t {address}\nDevice Minor: \t {minor}\nGPU Excluded:\t No"
        )
        self.write(f"proc/driver/nvidia/gpus/{address}/information", fields)
        if is_allowed:
            self.write(f"dev/nvidia{minor}", "")
        self.write("dev/nvidiactl", "")


def uuid(minor: int) -> str:
    return f"GPU-{minor:08x}-1111-2222-3333-444444444444"


def masked(cpus: str) -> str:
    """Return a list as the kernel's mask: 0000ffff,00000000."""
    bits = sum(1 << cpu for cpu in parse_cpu_list(cpus))
    return ",".join(f"{bits >> shift & 0xFFFFFFFF:08x}" for shift in range(288, -1, -32))


def listed(cpus: Iterable[int]) -> str:
    return ",".join(str(cpu) for cpu in sorted(cpus))


# A LUMI-G node: docs.lumi-supercomputer.eu (hardware, distribution and binding): NPS4, 8 caches of 8 cores, the map of
# PCI buses to NUMA domains; the links between dies by their number (4 within a chip, 2 or 1 between chips), which the
# documentation of Frontier's equal node gives as 200, 100 and 50 GB/s each way; one NIC a chip, at its second die.
LUMI_BUSES = ("c1", "c6", "c9", "ce", "d1", "d6", "d9", "de")
LUMI_CACHES = (6, 7, 2, 3, 0, 1, 4, 5)
LUMI_LINKS = {
    (0, 1): 4, (2, 3): 4, (4, 5): 4, (6, 7): 4, (0, 6): 2, (2, 4): 2,
    (0, 2): 1, (1, 3): 1, (1, 5): 1, (3, 7): 1, (4, 6): 1, (5, 7): 1,
}  # fmt: skip
LUMI_USABLE = "1-7,9-15,17-23,25-31,33-39,41-47,49-55,57-63"


def lumi_g(
    root: Path,
    *,
    cpus: str = LUMI_USABLE,
    devices: Collection[int] = range(8),
    local: str = "numa",
    bandwidth: bool = True,
) -> Path:
    tree = Tree(root, "nid005000")
    tree.cpus(num_sockets=1, cores=64, per_cache=8, per_numa=16, threads=2)
    tree.domains(
        {one: [10 if one == other else 12 for other in range(4)] for one in range(4)},
        dict.fromkeys(range(4), 128 * GIB),
    )
    for number in range(4):
        tree.kfd(number, {"cpu_cores_count": 32, "simd_count": 0, "mem_banks_count": 1}, gpu_id=0)
    for device, bus in enumerate(LUMI_BUSES):
        _lumi_device(tree, device, bus, device in devices, devices, local, bandwidth)
    for index, (bus, numa) in enumerate((("c5", 3), ("cd", 1), ("d5", 0), ("dd", 2))):
        path = f"pci0000:{bus[0]}{int(bus[1], 16) - 1:x}/0000:{bus[0]}{int(bus[1], 16) - 1:x}:01.1/0000:{bus}:00.0"
        tree.pci(path, numa=numa)
        tree.net(f"hsn{index}", path, megabits=200_000)
        tree.link(f"sys/class/cxi/cxi{index}/device", f"sys/devices/{path}")
    tree.pci("pci0000:90/0000:90:05.1/0000:94:00.0", numa=2)
    tree.net("nmn0", "pci0000:90/0000:90:05.1/0000:94:00.0", megabits=1000)
    tree.write("sys/class/net/lo/operstate", "unknown")
    tree.allow(cpus)
    return root


def _lumi_device(
    tree: Tree, device: int, bus: str, is_allowed: bool, allowed: Collection[int], local: str, bandwidth: bool
) -> None:
    cache = LUMI_CACHES[device]
    near = f"{8 * cache}-{8 * cache + 7},{8 * cache + 64}-{8 * cache + 71}"
    # an odd die and its chip's NIC have one root complex: c6 and c5 hang on c4
    first = int(bus, 16) - (2 if device % 2 else 1)
    address = tree.pci(
        f"pci0000:{first:02x}/0000:{first:02x}:07.1/0000:{bus}:00.0",
        numa=cache // 2,
        local=near if local == "cache" else None if local == "numa" else "",
    )
    tree.link(f"sys/bus/pci/drivers/amdgpu/{address}", f"sys/bus/pci/devices/{address}")
    links = []
    for other in (other for other in range(8) if other != device and other in allowed):
        count = LUMI_LINKS.get((min(device, other), max(device, other)), 0)
        least, greatest = (50_000, 50_000 * count) if bandwidth else (0, 0)
        links.append(
            f"type 11\nversion_major 0\nversion_minor 0\nnode_from {device + 4}\nnode_to {other + 4}\n"
            f"weight {15 if count else 30}\nmin_latency 0\nmax_latency 0\nmin_bandwidth {least}\n"
            f"max_bandwidth {greatest}\nrecommended_transfer_size 0\nflags 1"
        )
    links.append(f"type 11\nnode_from {device + 4}\nnode_to {cache // 2}\nweight 13\nmin_bandwidth 0\nmax_bandwidth 0")
    properties = {
        "cpu_cores_count": 0, "simd_count": 440, "mem_banks_count": 1, "gfx_target_version": 90010, "vendor_id": 4098,
        "location_id": int(bus, 16) << 8, "domain": 0, "drm_render_minor": 128 + device, "hive_id": 15871348735,
        "unique_id": 0x4A7C19DA00000000 + device, "num_xcc": 1,
    }  # fmt: skip
    tree.kfd(device + 4, properties if is_allowed else None, gpu_id=50_000 + device, links=links if is_allowed else ())
    bank = f"heap_type 1\nsize_in_bytes {64 * GIB}\nflags 0\nwidth 4096\nmem_clk_max 1600" if is_allowed else ""
    tree.write(f"sys/class/kfd/kfd/topology/nodes/{device + 4}/mem_banks/0/properties", bank)


# A DGX A100: its user guide's table of affinities (GPU 0 and 1 at NUMA domain 3: 48-63,176-191; then 1, 7 and 5), NPS4,
# caches of 4 cores (Rome), two GPUs and two compute HCAs behind a PCIe switch each.
def dgx_a100(root: Path, *, cpus: str = "0-255", devices: Collection[int] = range(8)) -> Path:
    tree = Tree(root, "dgx01")
    tree.cpus(num_sockets=2, cores=64, per_cache=4, per_numa=16, threads=2)
    tree.domains(
        {one: [10 if one == other else 12 if one // 4 == other // 4 else 32 for other in range(8)] for one in range(8)},
        dict.fromkeys(range(8), 128 * GIB),
    )
    buses = ("07", "0f", "47", "4e", "87", "90", "b7", "bd")
    hcas = (("0c", "12"), ("4b", "54"), ("8d", "94"), ("ba", "cc"))
    for pair, (root_bus, numa) in enumerate((("00", 3), ("40", 1), ("80", 7), ("a0", 5))):
        switch = f"pci0000:{root_bus}/0000:{root_bus}:01.1/0000:{root_bus[0]}1:00.0"
        for minor in (2 * pair, 2 * pair + 1):
            tree.nvidia(
                minor,
                f"{switch}/0000:{buses[minor]}:00.0",
                model="NVIDIA A100-SXM4-40GB",
                numa=numa,
                is_allowed=minor in devices,
            )
        for index, bus in enumerate(hcas[pair]):
            path = f"{switch}/0000:{bus}:00.0"
            tree.pci(path, numa=numa)
            tree.verbs(f"mlx5_{2 * pair + index}", path, rate="200 Gb/sec (4X HDR)")
            tree.net(f"ib{2 * pair + index}", path, megabits=200_000)
    storage = "pci0000:60/0000:60:03.1/0000:61:00.0"
    tree.pci(storage, numa=4)
    tree.verbs("mlx5_8", storage, rate="100 Gb/sec (4X EDR)", layer="Ethernet")
    tree.net("enp97s0f0", storage, megabits=100_000)
    tree.allow(cpus)
    return root


# A node of four GH200 (Roihu: docs.csc.fi): 72 cores each without SMT, NUMA domains 0-3 with cores; each GPU's memory
# is a domain of its own (4, 12, 20, 28: eight are set aside for each), without cores. One InfiniBand link each.
def gh200(root: Path, *, cpus: str = "0-287", devices: Collection[int] = range(4)) -> Path:
    tree = Tree(root, "g1101")
    tree.cpus(num_sockets=4, cores=72, per_cache=72, per_numa=72, threads=1)
    numbers = list(range(36))

    def superchip(domain: int) -> int:
        return domain if domain < 4 else (domain - 4) // 8

    def apart(one: int, other: int) -> int:
        near = superchip(one) == superchip(other)
        return 10 if one == other else (80 if near else 120) if max(one, other) >= 4 else 40

    memory = {**dict.fromkeys(range(4), 120 * GIB), **dict.fromkeys((4, 12, 20, 28), 96 * GIB)}
    tree.domains({one: [apart(one, other) for other in numbers] for one in numbers}, memory)
    for minor in range(4):
        tree.nvidia(
            minor,
            f"pci00{minor:02x}9:00/0{minor}09:00:00.0/0{minor}09:01:00.0",
            model="NVIDIA GH200 120GB",
            numa=minor,
            is_allowed=minor in devices,
        )
        path = f"pci00{minor:02x}2:00/0{minor}02:00:00.0/0{minor}02:01:00.0"
        tree.pci(path, numa=minor)
        tree.verbs(f"mlx5_{minor}", path, rate="200 Gb/sec (2X NDR)")
    tree.allow(cpus)
    return root


# A GPU node of Puhti (docs.csc.fi): two Xeon 6230 of 20 cores, SMT off, four V100, two at each socket, two HDR100.
def v100(root: Path, *, cpus: str = "0-39", devices: Collection[int] = range(4)) -> Path:
    tree = Tree(root, "r01g01")
    tree.cpus(num_sockets=2, cores=20, per_cache=20, per_numa=20, threads=1)
    tree.domains({0: [10, 21], 1: [21, 10]}, {0: 192 * GIB, 1: 192 * GIB})
    for minor, (root_bus, bus) in enumerate((("17", "1a"), ("17", "1c"), ("85", "88"), ("85", "8a"))):
        tree.nvidia(
            minor,
            f"pci0000:{root_bus}/0000:{root_bus}:00.0/0000:{bus}:00.0",
            model="Tesla V100-SXM2-32GB",
            numa=minor // 2,
            is_allowed=minor in devices,
        )
    for index, root_bus in enumerate(("5d", "ae")):
        path = f"pci0000:{root_bus}/0000:{root_bus}:00.0/0000:{int(root_bus, 16) + 1:02x}:00.0"
        tree.pci(path, numa=index)
        tree.verbs(f"mlx5_{index}", path, rate="100 Gb/sec (2X HDR)")
        tree.net(f"ib{index}", path, megabits=100_000)
    tree.allow(cpus)
    return root


# A workstation: one processor of 16 cores with SMT, siblings numbered side by side, two cards, a kernel without NUMA.
def workstation(root: Path, *, cpus: str = "0-31", devices: Collection[int] = range(2)) -> Path:
    tree = Tree(root, "desk")
    for number in range(32):
        low = number - number % 2
        tree.cpu(
            number,
            siblings=f"{low}-{low + 1}",
            socket=0,
            sockets_cpus="0-31",
            cache="0-15" if number < 16 else "16-31",
        )
        tree.numa_of[number] = -1
    tree.write("sys/devices/system/cpu/online", "0-31")
    for minor, bus in enumerate(("01", "02")):
        tree.nvidia(
            minor,
            f"pci0000:00/0000:00:0{minor + 1}.1/0000:{bus}:00.0",
            model=("NVIDIA RTX A6000", "NVIDIA GeForce RTX 4090")[minor],
            numa=-1,
            is_allowed=minor in devices,
            local="0-31",
        )
    tree.pci("pci0000:00/0000:00:1c.0/0000:05:00.0", numa=-1, local="0-31")
    tree.net("enp5s0", "pci0000:00/0000:00:1c.0/0000:05:00.0", megabits=2500)
    tree.write("proc/self/status", "Cpus_allowed_list:\t0-31")
    tree.write("proc/self/cgroup", "3:cpuset:/user\n1:cpu,cpuacct:/")
    tree.write("sys/fs/cgroup/cpuset/user/cpuset.cpus", cpus)
    return root


# A virtual machine: four processors without caches or NUMA distances, one virtio interface that knows no speed.
def vm(root: Path, *, cpus: str = "0-3", devices: Collection[int] = ()) -> Path:
    assert not devices
    tree = Tree(root, "vm")
    for number in range(4):
        tree.cpu(number, siblings=str(number), socket=number, sockets_cpus=str(number), cache="")
    tree.write("sys/devices/system/cpu/online", "0-3")
    tree.pci("pci0000:00/0000:00:03.0", numa=-1, local="0-3")
    tree.write("sys/devices/pci0000:00/0000:00:03.0/virtio1/vendor", "0x1af4")
    tree.net("eth0", "pci0000:00/0000:00:03.0/virtio1", megabits=-1)
    tree.write("proc/self/status", f"Cpus_allowed_list:\t{cpus}")
    return root
