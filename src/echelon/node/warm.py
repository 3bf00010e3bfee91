"""The warm process: imports once, checks that a fork is safe, and forks every rank of this node.

It runs in the user's interpreter, at the start of the user's script (see start_hook.py).
"""

import gc
import os
import select
import signal
import socket
import sys
from typing import Any, Callable, Dict, FrozenSet, List, Tuple

from . import affinity, after_fork, children, credentials, leave, link, preload, pulse, sweep, warning_signals

# Slurm signals every process of a step; only the ranks should act on it, and the agent passes it on to them
HELD_BACK = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP}


def serve(
    descriptor: int,
    at_start: FrozenSet[str],
    prepare_ranks: Callable[[], None],
    measuring: "Callable[[], pulse.Measuring]",
) -> None:
    """Import, then fork ranks whenever the agent asks; return in the ranks, never in the warm process.

    `at_start` names the modules that every Python has before it starts a script; `prepare_ranks` does work once that
    several ranks would otherwise repeat; `measuring` returns what measures a rank.
    """
    agent = socket.socket(fileno=descriptor)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    request = link.receive(agent)
    if request is None:
        os._exit(0)
    leave.prepare()
    folder, own = request[0]["folder"], request[0]["own"]
    preload.forget_shadowed(folder, own, at_start)
    report = preload.prepare(request[0], prepare_ranks if request[0]["num_ranks"] > 1 else None)
    sweep.adopt_orphans()
    preload.forget_shadowed(folder, own, at_start)
    link.send(agent, {"kind": "ready", **report})
    leave.keep_modules()
    gc.freeze()  # otherwise a collection in a rank would touch, and so copy, every shared page
    on_child = signal.getsignal(signal.SIGCHLD)  # an import may have set it
    wakeup = _watch_children()
    while True:
        readable, _, _ = select.select([agent.fileno(), wakeup[0]], [], [])
        if wakeup[0] in readable:
            _report_exits(agent, wakeup[0])
        if agent.fileno() in readable:
            request = link.receive(agent)
            if request is None:
                os._exit(0)
            message, descriptors = request
            if _fork(agent, message, descriptors):
                _become_rank(agent, wakeup, mask, message, descriptors, measuring)
                signal.signal(signal.SIGCHLD, on_child)
                return


def _watch_children() -> Tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return reading, writing


def _report_exits(agent: socket.socket, wakeup: int) -> None:
    try:
        os.read(wakeup, 4096)
    except BlockingIOError:
        pass
    for pid, status in children.ended():
        link.send(agent, {"kind": "exit", "pid": pid, "status": status})


def _fork(agent: socket.socket, message: Dict[str, Any], descriptors: List[int]) -> bool:
    """Fork one rank; return True in the rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:
        link.send(agent, {"kind": "unforked", "local_rank": message["local_rank"], "why": str(error)})
        pid = -1
    if pid == 0:
        return True
    for descriptor in descriptors:
        os.close(descriptor)
    if pid > 0:
        link.send(agent, {"kind": "forked", "local_rank": message["local_rank"], "pid": pid})
    return False


def _become_rank(
    agent: socket.socket,
    wakeup: Tuple[int, int],
    mask: Any,
    message: Dict[str, Any],
    descriptors: List[int],
    measuring: "Callable[[], pulse.Measuring]",
) -> None:
    os.setsid()
    if message["cpus"]:
        _bind(agent, message)
    agent.close()
    signal.set_wakeup_fd(-1)
    for end in wakeup:
        os.close(end)
    for standard, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    for name, value in message["environ"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    page = descriptors.pop() if message.get("has_pulse") else -1
    for descriptor in descriptors[3:]:
        os.environ.update(credentials.variable(descriptor))
    if message.get("argument"):
        sys.argv.insert(1, message["argument"])
    after_fork.renew()
    if page >= 0:
        pulse.arm(page, measuring)
    warning_signals.ignore()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _bind(agent: socket.socket, message: Dict[str, Any]) -> None:
    """Bind this rank to its cores, and report the resulting binding from inside."""
    affinity.apply(message["cpus"])
    environ = {**os.environ, **message["environ"]}
    seen = {name: environ[name] for name in affinity.SEEN if environ.get(name) is not None}
    cpus = sorted(os.sched_getaffinity(0))
    link.send(agent, {"kind": "held", "local_rank": message["local_rank"], "cpus": cpus, "environ": seen})
