"""Make process groups whose ranks meet through a store that requires the run's key; each pair of ranks proves it again.

The store accepts no addresses of ranks from strangers. The proof keeps out a process that connects to a rank's port in
place of another rank, because gloo does not authenticate. Scripts that call init_process_group() have PyTorch's
store, and no proof.

Lower the priority of gloo's event loops, so that they yield their cores.

A loop reads a connection only when no other thread holds its lock, and is woken at once as long as there is something
to read (gloo/transport/tcp: Pair::handleEvents takes the lock or leaves, Loop::run waits for a level). Where ranks are
as many as cores, the loop spins on the very core that the thread with the lock waits for; with a lower priority, and
as a batch thread, which takes no core from another when it wakes (man 7 sched), it makes way (docs/performance.md).
PyTorch 2.6 gives these threads no name: there they stay.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout
from torch.distributed.rendezvous import rendezvous

from ...node import secret
from ...node.secret import NONCE_BYTES, digest, is_digest
from ...pytorch import distributed, internals
from .. import patches
from ..function_types import Kwargs
from ..scaling_error import ScalingError
from . import device as devices
from . import waiting

_SHARED = (
    "echelon: note: several ranks share a device: they exchange data over the CPU with gloo, because NCCL "
    "refuses shared devices; one rank per device is faster\n"
)
_INTERFACE = "GLOO_SOCKET_IFNAME"
_LOOPBACK = "lo"
_DROP_SECONDS = 0.05
"""For gloo's threads to drop the last tensors: they need Python's lock, which destroy_process_group() holds while it
waits for them. With PyTorch 2.6 a quarter of the restarts hung so."""
_stores: list[object] = []  # PyTorch knows a store's C++ half alone
_key: bytes | None = None


def form(device: torch.device, timeout: timedelta | None = None) -> None:
    """Form the default group of all ranks of the run; with gloo if some ranks share a device."""
    devices.set_current(device)
    settings: Kwargs = {} if timeout is None else {"timeout": timeout}
    store = _store_of_run()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    is_shared = False
    if devices.is_accelerator(device) and size > 1:
        if store is None:
            store, rank, size = next(rendezvous("env://"))
            store.set_timeout(default_pg_timeout)
        is_shared = _share_devices(distributed.PrefixStore("echelon devices", store), devices.identity(device), size)
        if is_shared and rank == 0:
            sys.stderr.write(_SHARED)
            sys.stderr.flush()
    if store is not None:
        settings.update(store=distributed.PrefixStore("default_pg", store), rank=rank, world_size=size)
    with _near(), _without_greeting():
        dist.init_process_group(devices.backends(device, is_shared=is_shared), **settings)
    yield_cores()
    prove(None)
    if size > 1:
        waiting.begin(rank, size, store or distributed.default_store())


@contextmanager
def temporary(timeout: timedelta) -> Iterator[None]:
    """Let all ranks of the run meet with gloo, before the script begins; no device is used, and no group remains."""
    store = distributed.PrefixStore("temporary", _store_of_run())
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    excepthook = sys.excepthook
    with _near(), _without_greeting():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        prove(None)
        yield
    finally:
        if internals.numbers() < (2, 13):
            time.sleep(_DROP_SECONDS)
        dist.destroy_process_group()
        why = "PyTorch's hook writes the rank before each line of an error; that of a second group writes it again."
        patches.replace(sys, "excepthook", excepthook, why=why)


def _store_of_run() -> object:
    """Return the store that the first agent serves; None for ranks of another launcher, which has its own store."""
    global _key
    if _stores:
        return _stores[-1]
    entrance = secret.take(os.environ)
    if entrance is None:
        return None
    from .store import RankStore  # its base class needs torch.distributed

    _key = entrance.key
    # a thread of NCCL that asks the store while Python ends would wait for ever for an interpreter that is gone
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
    _stores.append(RankStore(entrance.host, entrance.port, entrance.key))
    return _stores[-1]


def _share_devices(store: Any, device: str, size: int) -> bool:
    return _any_rank(store, size, is_so=store.add("device " + device, 1) > 1)


def any_rank(question: str, *, is_so: bool) -> bool:
    """Say whether it is so on any rank of the run, before the ranks have formed a group; all ranks ask it once."""
    store = _store_of_run()
    if store is None:
        return is_so
    return _any_rank(distributed.PrefixStore(question, store), int(os.environ.get("WORLD_SIZE", "1")), is_so=is_so)


def _any_rank(store: Any, size: int, *, is_so: bool) -> bool:
    """Say whether it is so on any rank: each rank asks a few keys, and the last rank decides."""
    store.add("number", int(is_so))
    if store.add("come", 1) == size:
        store.set("decided", str(store.add("number", 0)))
    return bool(int(store.get("decided")))


def form_alone(device: torch.device) -> None:
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    with _without_greeting():
        dist.init_process_group(devices.backends(device), store=store, rank=0, world_size=1)


def new(ranks: Sequence[int] | None = None, **settings: Any) -> Any:
    with _near(), _without_greeting():
        group = dist.new_group(None if ranks is None else list(ranks), **settings)
    yield_cores()
    prove(group)
    return group


def prove(group: Any) -> None:
    """Let each pair of ranks answer each other's challenge, over the connection that they will use.

    NCCL's connections begin with a number that the store told, so its groups have had their proof.
    """
    if _key is None or dist.get_world_size(group) in (1, -1) or "cpu:" not in str(dist.get_backend_config(group)):
        return  # alone in the group, or in no group
    group = group or dist.group.WORLD
    ranks = dist.get_process_group_ranks(group)
    me = dist.get_rank()
    peers = [place for place, rank in enumerate(ranks) if rank != me]
    own = [os.urandom(NONCE_BYTES) for _ in ranks]
    theirs = _exchanged(own, group)
    name = str(group.group_name)

    def answer(place: int, *, is_own: bool) -> bytes:
        asker, asked = (ranks[place], me) if is_own else (me, ranks[place])
        nonces = theirs[place] + own[place] if is_own else own[place] + theirs[place]
        return digest(_key or b"", b"rank %d to rank %d of %s:" % (asked, asker, name.encode()) + nonces)

    heard = _exchanged([answer(place, is_own=True) for place in range(len(ranks))], group)
    for place in peers:
        if not is_digest(answer(place, is_own=False), heard[place]):
            raise ScalingError(
                f"the process that connected to rank {me} as rank {ranks[place]} does not have the key of this run",
                "start the run again; docs/slurm.md says who may connect",
            )


def _exchanged(parts: list[bytes], group: object) -> list[bytes]:
    """Send each rank its part; return the parts for this rank. Each pair of ranks uses its own connection."""
    size = len(parts[0])
    sent = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)
    heard = torch.empty_like(sent)
    dist.all_to_all_single(heard, sent, group=group)
    content = bytes(heard.tolist())
    return [content[first : first + size] for first in range(0, len(content), size)]


@contextmanager
def _without_greeting() -> Iterator[None]:
    """Keep a line that gloo writes to stdout for each group out of the script's output: seen with 2.9, gone in 2.12."""
    if not (2, 7) <= internals.numbers() < (2, 12):
        yield
        return
    if sys.stdout is not None:
        sys.stdout.flush()
    kept, silence = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.close(silence)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _near() -> Iterator[None]:
    """Let gloo listen on the loopback interface alone if all ranks are on one node."""
    is_one_node = os.environ.get("WORLD_SIZE") == os.environ.get("LOCAL_WORLD_SIZE")
    if _key is None or not is_one_node or _INTERFACE in os.environ or not os.path.exists("/sys/class/net/lo"):
        yield
        return
    os.environ[_INTERFACE] = _LOOPBACK
    try:
        yield
    finally:
        del os.environ[_INTERFACE]


_LOOP = "gloo_tcp_loop"  # gloo's name for the thread
NICENESS = 10
"""How much lower: with 19, two programs that keep the same two cores busy made a step half as long again."""


def yield_cores() -> None:
    """Let all event loops of this process yield; it is called after a process group has been made."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return  # not Linux
    niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    for thread in threads:
        with suppress(OSError):  # it has ended, or this is not allowed here
            if _name_of(thread) == _LOOP:
                os.setpriority(os.PRIO_PROCESS, int(thread), niceness)
                os.sched_setscheduler(int(thread), os.SCHED_BATCH, os.sched_param(0))


def _name_of(thread: str) -> str:
    with open(f"/proc/self/task/{thread}/comm") as file:
        return file.read().strip()
