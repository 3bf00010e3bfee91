"""A program: echelon within one slot of a sweep, which sees its own devices and runs on its own cores.

Its arguments are the number of the slot, the number of slots of the node, the devices of each, and a command of
echelon. It is started on the node of the slot, because only there its devices and cores are known.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping

from echelon.cli import main, streams, talk
from echelon.environment import agent_place, devices, threads
from echelon.environment.errors import WrongEnvironmentError
from echelon.host import own_command
from echelon.topology import binding, discover
from echelon.topology.devices import visible


def enter(environ: MutableMapping[str, str], index: int, num_slots: int, num_devices: int) -> None:
    """Narrow this process and its variables to a slot; raise DeviceError if the node has too few devices."""
    filters = devices.some(environ, index * num_devices, num_devices) if num_devices else {}
    num_parts, num_mine = (len(devices.visible(environ)), num_devices) if num_devices else (num_slots, 1)
    node = discover.read("/", environ)
    beside = visible(node, environ) if num_devices else []
    is_known = bool(beside) and len(beside) == num_parts
    if not is_known or agent_place.is_slurm_job(environ):  # elsewhere a run takes the cores beside its own devices
        parts = binding.assign(node, beside if is_known else [None] * num_parts)
        threads.apply([core for part in parts[index * num_mine :][:num_mine] for core in part])
    for name, value in filters.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value


if __name__ == "__main__":
    own_command.end_with_parent()  # with a sweep that is killed, its runs end in order
    try:
        enter(os.environ, *map(int, sys.argv[1:4]))
    except WrongEnvironmentError as error:
        talk.say_error(streams.translated(error))
        sys.exit(2)
    del sys.argv[1:4]
    sys.exit(main())
