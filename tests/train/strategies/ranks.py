"""Real gloo ranks, cheaply: a fork of the warm process forks as many ranks as a test asks for.

A test calls `run(4, function, argument, …)` with a function of a module; each rank calls it, and what they return comes
back in the order of ranks. The server is this module as a program, started at the first call and ended with its tests.
"""

import atexit
import functools
import gc
import importlib
import os
import pickle
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import IO, Any

import pytest
from tests import huge_pages, warm
from tests.conftest import FOREIGN

ROOT = Path(__file__).parents[3]
SECONDS = 240
_server: list[IO[bytes]] = []


class RankFailed(Exception):
    """What the ranks that failed have written."""


def run(num_ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call a function on every rank of a new world; return what each gave."""
    return run_beside((num_ranks, function, args))[0]


def run_beside(*worlds: tuple[int, Callable[..., Any], tuple[Any, ...]]) -> list[list[Any]]:
    """Do so in several worlds at a time."""
    asking, answering = serve()
    asked = [(num_ranks, function.__module__, function.__name__, args) for num_ranks, function, args in worlds]
    pickle.dump(asked, asking)
    asking.flush()
    return [_values(results) for results in pickle.load(answering)]


def _values(results: list[tuple[bool, Any]]) -> list[Any]:
    failed = [text for is_fine, text in results if not is_fine]
    if failed and all("VersionError" in text for text in failed):
        pytest.skip(failed[0].strip().rpartition("VersionError: ")[2])  # only under an older PyTorch: `make torches`
    if failed:
        raise RankFailed("\n".join(failed[:1] + [text.strip().rpartition("\n")[2] for text in failed[1:]]))
    return [value for _, value in results]


def serve() -> tuple[IO[bytes], IO[bytes]]:
    """Return the ways to the server and back; it is started where it does not run."""
    if not _server:
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        environ = {**clean, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": paths}
        folder = tempfile.mkdtemp(prefix="ranks-")
        atexit.register(shutil.rmtree, folder)
        ways = [os.path.join(folder, name) for name in ("asked", "answers")]
        for way in ways:
            os.mkfifo(way)
        words = ["-m", "tests.train.strategies.ranks", *ways]
        Thread(target=_start, args=(words, environ), daemon=True).start()
        _server.extend((open(ways[0], "wb"), open(ways[1], "rb")))  # noqa: SIM115
    return _server[0], _server[1]


def _start(words: list[str], environ: dict[str, str]) -> None:
    """Have the warm process fork the server; what it and the ranks print is shown where the tests print."""
    warm.ask(warm.address(), words, cwd=str(ROOT), environ=environ, outputs=[2, 2])


def main() -> None:
    """Serve until nobody asks any more."""
    asking, answering = open(sys.argv[1], "rb"), open(sys.argv[2], "wb")  # noqa: SIM115
    gc.disable()  # while objects are only added
    import torch
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.optim
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel

    import echelon.train.strategies.exact_parallel  # noqa: F401

    gc.enable()
    torch.set_num_threads(1)
    _leave_out_what_nobody_sees()
    huge_pages.collapse()
    while True:
        try:
            asked = pickle.load(asking)
        except EOFError:
            return
        for _, module, _, _ in asked:
            importlib.import_module(module)
        worlds = [World(*one) for one in asked]
        pickle.dump([world.answers() for world in worlds], answering)
        answering.flush()


def _leave_out_what_nobody_sees() -> None:
    """Nothing is profiled or compiled here, and being ready for it is a good part of a step of fully_shard."""
    import torch._dynamo
    from torch.profiler import record_function

    record_function.__enter__ = lambda self: self  # type: ignore[method-assign]
    record_function.__exit__ = lambda *_: None  # type: ignore[method-assign, assignment]
    torch._dynamo.disable = functools.cache(torch._dynamo.disable)  # type: ignore[assignment]


class World:
    """Ranks that were forked, and a folder for what each of them gives."""

    def __init__(self, num_ranks: int, module: str, name: str, args: Any) -> None:
        gc.freeze()  # no rank looks through, and so copies, what all have in common
        self._folder = tempfile.mkdtemp(prefix="ranks-")
        self._children = []
        for rank in range(num_ranks):
            child = os.fork()
            if not child:
                _be_rank(rank, num_ranks, self._folder, module, name, args)
            self._children.append(child)

    def answers(self) -> list[tuple[bool, Any]]:
        """Return what each rank gave, when all have ended."""
        for child in self._children:
            os.waitpid(child, 0)
        found = [_answer(self._folder, rank) for rank in range(len(self._children))]
        shutil.rmtree(self._folder)
        return found


def _answer(folder: str, rank: int) -> tuple[bool, Any]:
    try:
        with open(f"{folder}/{rank}", "rb") as file:
            return pickle.load(file)  # type: ignore[no-any-return]
    except OSError:
        return False, f"rank {rank} died"


def _be_rank(rank: int, num_ranks: int, folder: str, module: str, name: str, args: Any) -> None:
    import datetime
    import faulthandler

    import torch.distributed as dist

    from echelon.train.wire import groups

    faulthandler.dump_traceback_later(SECONDS, exit=True)
    sizes = {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), **sizes)
    cores = sorted(os.sched_getaffinity(0))
    if num_ranks % len(cores) == 0:
        os.sched_setaffinity(0, {cores[rank % len(cores)]})  # they meet sooner than where the kernel moves them
    os.chdir(folder)
    try:
        try:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=num_ranks,
                timeout=datetime.timedelta(seconds=SECONDS // 2),
            )  # fmt: skip
        finally:
            open(f"{folder}/{rank}.begun", "xb").close()
        groups.yield_cores()  # as where echelon makes the group
        result = (True, getattr(importlib.import_module(module), name)(*args))
    except BaseException:  # noqa: BLE001  (whatever it is, the test shows it)
        result = (False, f"rank {rank}: {traceback.format_exc()}")
    with open(f"{folder}/{rank}.part", "wb") as file:
        pickle.dump(result, file)
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}")
    while not all(os.path.exists(f"{folder}/{other}.begun") for other in range(num_ranks)):
        time.sleep(0.01)  # gloo connects each rank with each: one that has left would be waited for
    os._exit(0)


if __name__ == "__main__":
    main()
