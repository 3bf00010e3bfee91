"""The parts of a survey. -1, 0 and empty texts are what is not known."""

from typing import Any, Dict, Mapping, NamedTuple, Tuple, get_type_hints

NOTHING: Mapping[str, str] = {}


class Settings(NamedTuple):
    """The environment, as far as it decides how a run goes; nothing that may be a secret."""

    variables: Mapping[str, str] = NOTHING


class Cores(NamedTuple):
    """The processors and the memory that this process may use."""

    num_cores: int = 0  # physical cores of the node
    num_threads: int = 0  # its hardware threads
    allowed: str = ""  # hardware threads that the mask allows: "1-7,9-15"
    num_allowed_cores: int = 0
    num_usable: int = 0  # cores' worth of time: the mask or the cgroup's quota, the lesser
    numa_of_allowed: Tuple[int, ...] = ()  # domains of the allowed cores
    numa_of_memory: Tuple[int, ...] = ()  # domains that memory may come from
    memory_policy: str = ""  # "default", "bind:0", "interleave:0-3"
    memory_bytes: int = 0  # of the node
    available_bytes: int = 0
    memory_limit_bytes: int = 0  # the cgroup's; 0: none
    load: float = 0.0  # processes that want to run, over the last minute


class Device(NamedTuple):
    """One device, with what the visibility filters leave and how near the allowed cores are."""

    number: int
    vendor: str
    model: str
    pci: str
    uuid: str
    numa: int
    memory_bytes: int
    chip: int
    is_allowed: bool
    is_visible: bool
    distance: int  # from the nearest allowed core; 10 is local
    nic: str


class Devices(NamedTuple):
    """The devices in the driver's order."""

    devices: Tuple[Device, ...] = ()
    visible: Tuple[int, ...] = ()  # numbers, in the order in which a framework counts them
    num_claimed: int = 0  # by the filter variables, where no device is to be seen


class Health(NamedTuple):
    """What one device says of itself."""

    pci: str
    used_bytes: int  # memory in use before the run
    corrected: int  # errors of its memory since boot; -1: not known
    uncorrected: int
    pending: str  # a repair that waits for a reset
    throttled: Tuple[str, ...]  # why the clock is held down
    pcie_width: int
    pcie_width_most: int
    processes: Tuple[str, ...]  # "4711 python3 (other)"


class Healths(NamedTuple):
    """All devices, and the tool that was asked."""

    devices: Tuple[Health, ...] = ()
    source: str = ""


class Interface(NamedTuple):
    """A network interface with an IP address, or a device of the fast network."""

    name: str
    kind: str  # "slingshot", "infiniband", "ethernet", "other"
    is_up: bool
    bits_per_second: int
    address: str


class Network(NamedTuple):
    """The interfaces, what the node's name means, and the libraries of the fast network."""

    interfaces: Tuple[Interface, ...] = ()
    hostname: str = ""
    addresses: Tuple[str, ...] = ()  # what the name resolves to here
    plugins: Tuple[
        str, ...
    ] = ()  # libraries by which the collectives reach the fast network, that the loader would find
    modules: Tuple[str, ...] = ()  # kernel modules for RDMA into device memory
    boot_id: str = ""


class Limits(NamedTuple):
    """What the kernel allows this process; -1: no limit."""

    locked_bytes: int = 0
    open_files: int = 0
    open_files_most: int = 0  # to which a process may raise it
    processes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0  # the size of /dev/shm; 0: there is none
    shared_free_bytes: int = 0
    is_shared_writable: bool = False


class Software(NamedTuple):
    """Versions, read from files: nothing is imported."""

    kernel: str = ""
    architecture: str = ""
    driver: str = ""
    python: str = ""
    interpreter: str = ""
    container: str = ""  # the image that this process runs in
    binds: Tuple[str, ...] = ()  # of the paths that were asked for, those that are here
    packages: Mapping[str, str] = NOTHING  # "torch": "2.13.0+cpu"
    places: Mapping[str, str] = NOTHING  # "torch": the folder it is in


class Folder(NamedTuple):
    """A folder that ranks will write to, as it really lies."""

    purpose: str
    variable: str  # that names it; empty: the program's default
    path: str
    filesystem: str  # "lustre", "tmpfs", "ext4"
    mount: str
    is_there: bool
    is_writable: bool
    is_own: bool
    free_bytes: int  # -1: the file system does not count, nor below
    free_files: int


class Folders(NamedTuple):
    """All such folders."""

    folders: Tuple[Folder, ...] = ()


class Quota(NamedTuple):
    """How much one owner may have on a file system; a limit of 0 is none."""

    owner: str  # "user", "group", "project"
    mount: str
    used_bytes: int
    soft_bytes: int  # may be passed for some days
    limit_bytes: int
    used_files: int
    soft_files: int
    limit_files: int
    command: str  # that shows it


class Quotas(NamedTuple):
    """Those that count for the checkpoints."""

    quotas: Tuple[Quota, ...] = ()


class Survey(NamedTuple):
    """One node; of a part that did not answer nothing is known."""

    node: str
    seconds: float = 0.0  # that it took
    time: float = 0.0  # of the node's clock
    answered: Tuple[str, ...] = ()  # names of parts
    silent: Mapping[str, str] = NOTHING  # parts that did not answer, and why
    settings: Settings = Settings()
    cores: Cores = Cores()
    devices: Devices = Devices()
    healths: Healths = Healths()
    network: Network = Network()
    limits: Limits = Limits()
    software: Software = Software()
    folders: Folders = Folders()
    quotas: Quotas = Quotas()
    ahead_seconds: float = 0.0  # how far its clock is ahead of the supervisor's
    unreached: Mapping[str, str] = NOTHING  # nodes that it could not connect to, and why


def plain(value: Any) -> Any:
    """Return a survey as what JSON can hold."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(each) for name, each in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def rebuild(kind: Any, value: Any) -> Any:
    """Return what `plain` was given, of this type; raise ValueError for data that does not have its form."""
    makers = _makers(kind)
    if not isinstance(value, dict) or not value.keys() <= makers.keys():
        raise ValueError("not a %s: %.80r" % (kind.__name__, value))
    fields = {name: each if makers[name] is None else makers[name](each) for name, each in value.items()}
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError("not a %s: %s" % (kind.__name__, error)) from None


_known: Dict[Any, Dict[str, Any]] = {}


def _makers(kind: Any) -> Dict[str, Any]:
    """Return for each field what makes its value out of JSON's; None: it is what it is."""
    if kind not in _known:
        _known[kind] = {name: _maker(hint) for name, hint in get_type_hints(kind).items()}
    return _known[kind]


def _maker(hint: Any) -> Any:
    if hasattr(hint, "_fields"):
        return lambda value: rebuild(hint, value)
    if getattr(hint, "__origin__", None) is not tuple:
        return None
    inner = hint.__args__[0]
    if hasattr(inner, "_fields"):
        return lambda values: tuple([rebuild(inner, each) for each in _listed(values)])
    return lambda values: tuple(_listed(values))


def _listed(value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError("not a list: %.80r" % (value,))
    return value
