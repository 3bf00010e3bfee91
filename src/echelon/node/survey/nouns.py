"""The parts of a survey; -1, 0 and empty texts mean unknown."""

from typing import Any, Dict, Mapping, NamedTuple, Tuple, get_type_hints

from ...hardware.answers import Healths

NOTHING: Mapping[str, str] = {}


class EnvironmentSettings(NamedTuple):
    """The environment variables that affect a run; no secrets."""

    variables: Mapping[str, str] = NOTHING


class Cores(NamedTuple):
    """The processors and the memory that this process may use."""

    num_cores: int = 0  # physical cores of the node
    num_threads: int = 0  # its hardware threads
    allowed: str = ""  # hardware threads in the mask: "1-7,9-15"
    num_allowed_cores: int = 0
    num_usable: int = 0  # usable cores: the mask or the cgroup's quota, whichever is less
    numa_of_allowed: Tuple[int, ...] = ()  # NUMA domains of the allowed cores
    numa_of_memory: Tuple[int, ...] = ()  # NUMA domains that may provide memory
    memory_policy: str = ""  # "default", "bind:0", "interleave:0-3"
    memory_bytes: int = 0  # of the node
    available_bytes: int = 0
    memory_limit_bytes: int = 0  # the cgroup's limit; 0: none
    load: float = 0.0  # average number of runnable processes over the last minute


class SurveyedDevice(NamedTuple):
    """A device: whether the visibility filters show it, and the distance of the allowed cores."""

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
    distance: int  # of the nearest allowed core; 10 is local
    nic: str


class SurveyedDevices(NamedTuple):
    """The devices, in the driver's order."""

    devices: Tuple[SurveyedDevice, ...] = ()
    visible: Tuple[int, ...] = ()  # device numbers, in the order in which a framework counts them
    num_claimed: int = 0  # the number that filter variables name, if no device is visible


class Interface(NamedTuple):
    """A network interface with an IP address, or a card of the fast network."""

    name: str
    kind: str  # "slingshot", "infiniband", "ethernet", "other"
    is_up: bool
    bits_per_second: int
    address: str


class NodeNetwork(NamedTuple):
    """The interfaces, the addresses of the node's name, and libraries of the fast network."""

    interfaces: Tuple[Interface, ...] = ()
    hostname: str = ""
    addresses: Tuple[str, ...] = ()  # the addresses to which the name resolves here
    plugins: Tuple[str, ...] = ()  # network plugins of the collectives that the loader would find
    modules: Tuple[str, ...] = ()  # kernel modules for RDMA into device memory
    boot_id: str = ""


class KernelLimits(NamedTuple):
    """The kernel's limits for this process; -1: no limit."""

    locked_bytes: int = 0
    open_files: int = 0
    open_files_most: int = 0  # the limit to which a process may raise it
    processes: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0  # the size of /dev/shm; 0: there is none
    shared_free_bytes: int = 0
    is_shared_writable: bool = False


class Software(NamedTuple):
    """Versions, read from files; nothing is imported."""

    kernel: str = ""
    architecture: str = ""
    driver: str = ""
    python: str = ""
    interpreter: str = ""
    container: str = ""  # the image of this process
    binds: Tuple[str, ...] = ()  # the requested paths that exist here
    packages: Mapping[str, str] = NOTHING  # "torch": "2.13.0+cpu"
    places: Mapping[str, str] = NOTHING  # "torch": the folder of the package


class Folder(NamedTuple):
    """A folder that ranks will write to, and its file system."""

    purpose: str
    variable: str  # the variable that names the folder; empty: the program's default
    path: str
    filesystem: str  # "lustre", "tmpfs", "ext4"
    mount: str
    is_there: bool
    is_writable: bool
    is_own: bool
    free_bytes: int  # -1: the file system does not count files
    free_files: int


class Folders(NamedTuple):
    """The folders that ranks will write to."""

    folders: Tuple[Folder, ...] = ()


class Quota(NamedTuple):
    """The quota of one owner on a file system; 0: no limit."""

    owner: str  # "user", "group", "project"
    mount: str
    used_bytes: int
    soft_bytes: int  # may be exceeded for some days
    limit_bytes: int
    used_files: int
    soft_files: int
    limit_files: int
    command: str  # the command that shows it


class Quotas(NamedTuple):
    """The quotas that apply to the checkpoints."""

    quotas: Tuple[Quota, ...] = ()


class Survey(NamedTuple):
    """The survey of one node; a part without an answer keeps its defaults."""

    node: str
    seconds: float = 0.0  # the duration of the survey
    time: float = 0.0  # by the node's clock
    answered: Tuple[str, ...] = ()  # names of parts
    silent: Mapping[str, str] = NOTHING  # parts without an answer, each with the reason
    settings: EnvironmentSettings = EnvironmentSettings()
    cores: Cores = Cores()
    devices: SurveyedDevices = SurveyedDevices()
    healths: Healths = Healths()
    network: NodeNetwork = NodeNetwork()
    limits: KernelLimits = KernelLimits()
    software: Software = Software()
    folders: Folders = Folders()
    quotas: Quotas = Quotas()
    ahead_seconds: float = 0.0  # how far the node's clock is ahead of the supervisor's
    unreached: Mapping[str, str] = NOTHING  # nodes that it could not connect to, each with the reason


def plain(value: Any) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(each) for name, each in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def rebuild(kind: Any, value: Any) -> Any:
    """Rebuild a value of this type from what `plain` returned; raise ValueError for other data."""
    if kind not in _known:
        _known[kind] = {name: _maker(hint) for name, hint in get_type_hints(kind).items()}
    makers = _known[kind]
    if not isinstance(value, dict) or not value.keys() <= makers.keys():
        raise ValueError("not a %s: %.80r" % (kind.__name__, value))
    fields = {name: each if makers[name] is None else makers[name](each) for name, each in value.items()}
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError("not a %s: %s" % (kind.__name__, error)) from None


def answered(node: str, answer: Any) -> Survey:
    """Return the survey that a node sent, named after it; without facts if the answer is none."""
    try:
        survey: Survey = rebuild(Survey, answer)
    except ValueError as error:
        survey = Survey("", silent={"node": "gave an unexpected answer: %s" % error})
    return survey._replace(node=node)


_known: Dict[Any, Dict[str, Any]] = {}


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
