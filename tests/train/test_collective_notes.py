"""A rank notes its last collectives, and the batches of its loaders, in a page that another process reads."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from echelon.node import call_page
from echelon.node.call_page import FAILED, NUM_CALLS, NUM_LOOPS, RETURNED, RUNNING
from echelon.train.measuring.collective_notes import CollectiveNotes


@pytest.fixture
def page() -> Iterator[int]:
    """Return the descriptor of a page, beside a process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), world_size=1, rank=0)
    descriptor = os.memfd_create("page")
    os.ftruncate(descriptor, call_page.END)
    yield descriptor
    os.close(descriptor)
    dist.destroy_process_group()


def rows(page: int, what: str = "calls") -> list[Any]:
    content: dict[str, list[Any]] = call_page.read(os.pread(page, call_page.END, 0))
    return content.get(what, [])


def test_last_calls_in_their_order(page: int) -> None:
    """Each group has its own numbers; a call is noted before it begins, and older ones give way."""
    calls = CollectiveNotes(page)
    seen: list[int] = []
    call = calls.recorded("all_reduce", lambda tensor, op=None, group=None: seen.append(rows(page)[-1][2]))
    other = dist.new_group([0])
    call(torch.ones(2, 3))
    call(torch.ones(2, dtype=torch.float64), None, other)
    call(tensor=torch.ones(()), group=other)
    call(torch.ones(1), group=dist.group.WORLD)
    numbers = [(number, group, tensor) for _, number, _, _, _, group, _, tensor in rows(page)]
    name = other.group_name
    assert numbers == [
        (1, "", "float32 [2, 3]"), (1, name, "float64 [2]"), (2, name, "float32 []"), (2, "", "float32 [1]")
    ]  # fmt: skip
    assert {row[6] for row in rows(page)} == {"test_collective_notes.py"}
    assert seen == [RUNNING] * 4
    for _ in range(30):
        call(torch.ones(1))
    assert [row[1] for row in rows(page)] == list(range(32 - NUM_CALLS + 1, 33))
    assert {row[2] for row in rows(page)} == {RETURNED}


def test_own_tensor_and_the_other_rank(page: int) -> None:
    """Of an all_gather what this rank gives counts, and not the list for what comes; a root and a peer are named."""
    calls, row = CollectiveNotes(page), torch.ones(5)

    def call(kind: str, *args: object, **kwargs: object) -> None:
        calls.recorded(kind, lambda *_, **__: None)(*args, **kwargs)

    call("all_gather", [torch.ones(4)] * 2, row)
    call("all_gather_object", [None], {})
    call("broadcast", row, 3)
    call("recv", row, src=1)
    call("gather", row, [row], dst=2)
    call("send", row, group_dst=2)
    told = [tensor for *_, tensor in rows(page)]
    own = "float32 [5]"
    assert told == [own, "", f"{own} from rank 3", f"{own} from rank 1", f"{own} to rank 2", own]


def test_call_that_fails(page: int) -> None:
    """Its error is the caller's, and the page says that it failed; a call between two ranks has no number."""
    calls = CollectiveNotes(page)
    with pytest.raises(ZeroDivisionError):
        calls.recorded("send", lambda _: 1 // 0)(torch.ones(1))
    assert [(row[1], row[2], row[4]) for row in rows(page)] == [(0, FAILED, "send")]


def test_call_without_a_group(page: int) -> None:
    """A group of other ranks, and no group at all, are no calls of this rank."""
    calls = CollectiveNotes(page)
    barrier = calls.recorded("barrier", lambda group=None: None)
    barrier(dist.GroupMember.NON_GROUP_MEMBER)
    barrier(group=dist.GroupMember.NON_GROUP_MEMBER)
    assert rows(page) == []
    barrier(dist.group.WORLD)
    assert [(row[1], row[4]) for row in rows(page)] == [(1, "barrier")]


class Killed(Dataset[int]):
    """Kills the worker that loads it."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_worker_that_was_killed(page: int) -> None:
    """The error that the loader raises may be any: of a socket, of a queue, or PyTorch's own."""
    calls = CollectiveNotes(page)
    with pytest.raises((RuntimeError, OSError, EOFError)) as caught:
        list(DataLoader(Killed(), num_workers=1))
    calls.note_error(caught.value)
    content: dict[str, Any] = call_page.read(os.pread(page, call_page.END, 0))
    assert content["note"] == "a worker of its DataLoader was killed by SIGKILL"


def test_loops_over_loaders(page: int) -> None:
    """A loop has its line, its turn, its batches and its end; one of two loops at once, and a left one, have theirs."""
    calls = CollectiveNotes(page)
    for left in (False, True, False):
        iterators = [iter(DataLoader(torch.ones(length, 1))) for length in (3, 2)]
        for _ in range(2):
            for iterator in iterators:
                calls.loaded(iterator)
        if not left:
            calls.loaded(iterators[0])
            calls.ended(iterators[1])
    told = [(batches, ended, turn) for _, batches, _, ended, turn, _ in rows(page, "loops")]
    assert told == [(2, 0, 3), (2, 0, 4), (3, 0, 5), (2, 1, 6)]
    for _ in range(NUM_LOOPS):
        calls.ended(iter(DataLoader(torch.ones(1, 1))))
    assert [row[1] for row in rows(page, "loops")] == [0] * NUM_LOOPS


def _call(calls: CollectiveNotes) -> None:
    calls.recorded("barrier", lambda: None)()


def test_child_leaves_the_page(page: int) -> None:
    """What a fork of the rank calls is no call of the rank."""
    calls = CollectiveNotes(page)
    _call(calls)
    child = multiprocessing.get_context("fork").Process(target=_call, args=[calls])
    child.start()
    child.join()
    assert child.exitcode == 0
    assert len(rows(page)) == 1
