"""Choose for each rank the cores nearest to its device, report the cores that it has, and look again later."""

import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..environment import digits
from ..environment.agent_place import is_slurm_job
from ..environment.threads import look_at
from .agent_spec import AgentSpec, Placement
from .ranks import Attempt, Rank

if TYPE_CHECKING:
    from ..hardware.answers import Device
    from ..topology.node import Node


ASKED_OFF = "asked for"
NO_OWN_CORES = "no devices, and cores that others may use too"


class Binding:
    """The cores and the device planned for each rank of this agent."""

    def __init__(self, spec: AgentSpec, placement: Placement, environ: Mapping[str, str], root: str = "/") -> None:
        self.why_not = _why_not(spec, placement, environ)
        self._is_shared = placement.num_devices < placement.local_world_size
        self._cpus: List[Tuple[int, ...]] = []
        self._devices: "List[Optional[Device]]" = []
        if self.why_not:
            return
        from ..topology import discover  # a run without binding does not pay for this import

        self._node: "Node" = discover.read(root, environ)
        self._devices = _devices(self._node, placement, environ)
        cpus = _assign(self._node, self._devices, spec.reserved, is_job=is_slurm_job(environ))
        self._cpus = [threads[: spec.cpus_per_rank or None] for threads in cpus]
        if not any(self._cpus):
            usable = len(set(self._node.allowed) - set(spec.reserved))
            self.why_not = "%d ranks share %d core%s" % (len(self._cpus), usable, "s"[: usable > 1])

    def cpus(self, local_rank: int) -> Tuple[int, ...]:
        """Return the hardware threads of a rank; empty: it is not bound."""
        return self._cpus[local_rank] if not self.why_not else ()

    def num_cores(self, local_rank: int) -> int:
        """Return the number of physical cores of a rank; 0: it is not bound."""
        if self.why_not:
            return 0
        core_of = {cpu.number: cpu.core for cpu in self._node.cpus}
        return len({core_of.get(number, number) for number in self.cpus(local_rank)})

    def held(self, local_rank: int, cpus: Sequence[int], environ: Mapping[str, str]) -> Dict[str, Any]:
        """Return the planned and the actual binding of a rank, for the supervisor to compare.

        `cpus` and `environ` are the rank's own, read inside of it or from the kernel.
        """
        from ..topology import binding as topology_binding

        wanted = self._devices[local_rank]
        device = _used(self._node, environ, local_rank) if not self._is_shared else wanted
        return {
            "wanted_cpus": topology_binding.cpu_list(self.cpus(local_rank)),
            "num_cores": self.num_cores(local_rank),
            "wanted_device": wanted.number if wanted is not None else -1,
            "device": device.number if device is not None else -1,
            **self.cores_held(local_rank, cpus, device.number if device is not None else -1),
        }

    def cores_held(self, local_rank: int, cpus: Sequence[int], device_number: int) -> Dict[str, Any]:
        """Return a rank's cores, their distance from its device, and the device's distance from the network."""
        from ..topology import binding as topology_binding

        device = next((device for device in self._node.devices if device.number == device_number), None)
        nic = topology_binding.nearest_nic(self._node, device) if device is not None else None
        return {
            "cpus": topology_binding.cpu_list(cpus),
            "is_within": set(cpus) <= set(self.cpus(local_rank)),  # a rank may narrow its own mask
            "distance": topology_binding.distance(self._node, cpus, device) if device is not None else 0,
            "nic": nic.name if nic is not None else "",
        }


def _why_not(spec: AgentSpec, placement: Placement, environ: Mapping[str, str]) -> str:
    if spec.bind == "off":
        return ASKED_OFF
    if spec.launch == "tasks" and 0 < placement.num_devices < placement.local_world_size:
        return "each Slurm task was given its own device, and which one the others have is not seen"
    if spec.bind == "auto" and not placement.num_devices and not is_slurm_job(environ):
        return NO_OWN_CORES
    return ""


def _devices(node: "Node", placement: Placement, environ: Mapping[str, str]) -> "List[Optional[Device]]":
    """Return the device of each local rank of the node; another agent may start some of the ranks."""
    from ..topology import devices as topology_devices

    seen = topology_devices.visible(node, environ)
    if not seen:
        return [None] * placement.local_world_size
    return [seen[local_rank % len(seen)] for local_rank in range(placement.local_world_size)]


def _assign(
    node: "Node", devices: "List[Optional[Device]]", reserved: Sequence[int], *, is_job: bool
) -> List[Tuple[int, ...]]:
    """Return the cores of each rank: in a job it shares all cores, elsewhere it gets those of its device."""
    from ..topology import binding as topology_binding

    numbers = [device.number for device in devices if device is not None]
    if is_job or len(set(numbers)) < len(devices):
        return topology_binding.assign(node, devices, reserved=reserved)
    # Unused devices may be another person's, who has the same right to the cores beside them.
    cpus = topology_binding.assign(node, node.devices, reserved=reserved)
    by_number = {device.number: cpus[place] for place, device in enumerate(node.devices)}
    return [by_number[number] for number in numbers]


def _used(node: "Node", environ: Mapping[str, str], local_rank: int) -> "Optional[Device]":
    """Return the device that a script with this environment takes: the one with number LOCAL_RANK."""
    from ..topology import devices as topology_devices

    seen = topology_devices.visible(node, environ)
    text = environ.get("LOCAL_RANK", str(local_rank))
    number = digits.whole(text, local_rank)
    return seen[number] if number < len(seen) else None


# Wrappers and libraries move a process soon after its start; people may do so at any time.
LOOK_SECONDS = (1.0, 5.0, 30.0)
LOOK_AGAIN_SECONDS = 60.0

Held = Dict[str, Any]


class Holdings:
    """The cores and devices of the ranks of one attempt; reported once for all, then for each rank that changes."""

    def __init__(self, binding: Binding, attempt: Attempt, num_ranks: int, tell: Callable[..., None]) -> None:
        self._binding, self._attempt, self._num_ranks, self._tell = binding, attempt, num_ranks, tell
        self._held: Dict[int, Held] = {}
        self._num_unseen = 0
        self._looks = 0
        self._began = time.monotonic()
        self._next = self._began + LOOK_SECONDS[0]

    def note(self, rank: Rank, cpus: Sequence[int], environ: Mapping[str, str]) -> None:
        """Record the binding of a rank at its start; once all ranks are recorded, report to the supervisor."""
        if self._binding.why_not:
            return
        self._held[rank.rank] = {"rank": rank.rank, **self._binding.held(rank.local_rank, cpus, environ)}
        self._conclude()

    def note_started(self, rank: Rank) -> None:
        """Record a rank that was started by exec, from the kernel's files."""
        holding = look_at(rank.pid) if not self._binding.why_not else None
        if holding is not None:
            self.note(rank, *holding)
        else:
            self.note_gone()

    def note_gone(self) -> None:
        """Count a rank that ended before it was seen, or never started."""
        self._num_unseen += 1
        self._conclude()

    def _conclude(self) -> None:
        if not self._binding.why_not and len(self._held) + self._num_unseen == self._num_ranks:
            self._say(list(self._held.values()), is_change=False)

    def look(self) -> Optional[float]:
        """Look again if it is time; return the seconds until the next look, None for never."""
        if self._binding.why_not:
            return None
        now = time.monotonic()
        if now >= self._next:
            self._looks += 1
            is_early = self._looks < len(LOOK_SECONDS)
            self._next = self._began + LOOK_SECONDS[self._looks] if is_early else now + LOOK_AGAIN_SECONDS
            changed = [held for held in map(self._changed, self._attempt.alive) if held is not None]
            if changed:
                self._say(changed, is_change=True)
        return max(0.0, self._next - now)

    def _changed(self, rank: Rank) -> Optional[Held]:
        before = self._held.get(rank.rank)
        holding = look_at(rank.pid) if before is not None else None
        if before is None or holding is None:
            return None
        cpus, environ = holding
        if not rank.was_forked:  # for a forked process the kernel shows its parent's environment
            before = {**before, "device": self._binding.held(rank.local_rank, cpus, environ)["device"]}
        now = {**before, **self._binding.cores_held(rank.local_rank, cpus, before["device"])}
        if now == self._held[rank.rank]:
            return None
        self._held[rank.rank] = now
        return now

    def _say(self, ranks: List[Held], *, is_change: bool) -> None:
        unseen = 0 if is_change else self._num_unseen
        self._tell("bound", attempt=self._attempt.number, ranks=ranks, is_change=is_change, num_unseen=unseen)
