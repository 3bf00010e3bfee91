"""What echelon asks about a vendor of devices; the nouns of the answers are loaded by those who ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .answers import Device, Healths, Listing, Readings, Sampled


class Cache(NamedTuple):
    """A folder that the vendor's libraries write by default."""

    purpose: str
    variable: str
    default: str  # may contain {home}, {cache}, {tmp}, {user}


class Interconnect(NamedTuple):
    """The links that join a vendor's devices."""

    kind: str = ""  # as in Link
    title: str = ""
    sign: str = ""  # the vendor's own abbreviation
    legend: str = ""  # of the sign and a number of links
    forwarded: str = ""  # legend of two devices that are joined by way of another; empty: no device forwards


class Vendor:
    """A vendor of devices: the words of its tools, and how its devices are read; the defaults say that it is unknown.

    What follows `filters` is empty for a vendor whose devices echelon cannot list.
    """

    name = ""
    """As surveys and tables of machines write it."""
    title = ""

    filters: tuple[tuple[str, ...], ...] = ()
    """The variables that filter the devices, the lowest layer first; in a layer the first that is set counts."""
    stray_filters: tuple[str, ...] = ()
    """Further variables that filter, which nobody should set."""
    filters_page = ""
    """Where the vendor documents them."""

    torch_word = ""
    """The attribute of torch.version that a build for its devices has; in capitals it begins PyTorch's errors."""
    toolkit = ""
    """The name of its libraries, which have a version in torch.version."""
    build = ""
    """How the version of such a build of PyTorch goes on after the plus sign."""
    packages: tuple[str, ...] = ()
    """Packages that only such a build needs."""
    can_expand_segments = True
    """Whether each version of its libraries has what expandable_segments of PyTorch's allocator needs."""

    users_command = ""
    """The command that lists the processes on a device."""
    container_options: tuple[str, ...] = ()
    """The options of Singularity and Apptainer that show an image its devices; the first one is the usual one."""
    image_needs_option = False
    """Whether no image works without such an option, because the driver's libraries are the node's."""
    cgroup_cuts_links = False
    """Whether a device that a cgroup hides cannot be reached over a direct link."""
    chips = ""
    """A pattern of the names of its chips in Slurm's gres."""

    control_file = ""
    """The device file that is there where the driver is loaded, below the root of the file tree."""
    driver_files: tuple[str, ...] = ()
    """How the paths of the files begin that a running driver has open."""
    interconnect = Interconnect()
    caches: tuple[Cache, ...] = ()
    is_health_fast = False
    """Whether the driver's files tell the health of its devices, and no slow tool."""

    def count(self, root: str) -> int:
        """Return the number of devices that this process may use, without opening a device file."""
        return 0

    def read(self, root: str) -> Listing:
        """Return the devices in the driver's order, hidden ones included but without their place, and their links."""
        return (), ()

    def driver_version(self, root: str) -> str:
        """Return the version of its kernel module; empty if it is not loaded."""
        return ""

    def read_health(self, root: str, devices: Sequence[Device], environ: Mapping[str, str]) -> Healths | None:
        """Return the driver's health data; None if it tells nothing."""
        return None

    def readings(self, root: str, devices: Sequence[Sampled], environ: Mapping[str, str]) -> Readings:
        """Return the function that samples these devices."""
        return dict

    @property
    def variables(self) -> tuple[str, ...]:
        """Return all variables that filter its devices."""
        return (*(name for layer in self.filters for name in layer), *self.stray_filters)

    def filter_texts(self, environ: Mapping[str, str]) -> list[str | None]:
        """Return the filter of each layer, the lowest first; None where none is set."""
        return [next((environ[name] for name in layer if name in environ), None) for layer in self.filters]
