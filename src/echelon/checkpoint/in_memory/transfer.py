"""Send files between ranks, from memory to memory: a group of gloo carries them beside the training's own messages."""

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..errors import CheckpointError, writing
from ..manifest import WrittenFile

_LENGTH_BYTES = 8
_PART_BYTES = 256 << 20
Files = dict[str, WrittenFile]


def pass_on(files: Mapping[str, WrittenFile], folder: str, keeper: int, kept: list[int], group: Any) -> Files:
    """Send this rank's files to `keeper`, and write those of the ranks `kept` into the same folder; return these.

    All ranks of the group call it, in any thread: no rank waits before it has sent. A rank that has nothing sends
    nothing; one that cannot write takes what comes all the same, and raises WriteError afterwards.
    """
    head = json.dumps(dict(files)).encode()
    sent = [_send(_tensor(len(head).to_bytes(_LENGTH_BYTES, "little")), keeper, group)]
    sent.append(_send(_tensor(head), keeper, group))
    views = [view for name in files for view in _views(os.path.join(folder, name), files[name].num_bytes)]
    sent += [_send(view, keeper, group) for view in views]
    received: Files = {}
    mistakes: list[CheckpointError] = []
    for rank in kept:
        theirs = _receive_head(rank, group)
        for name, written in theirs.items():
            for view in _new_views(folder, name, written.num_bytes, mistakes):
                group.recv([view], rank, 0).wait()
        received.update(theirs)
    for work in sent:
        work.wait()
    if mistakes:
        raise mistakes[0]
    return received


def broadcast(
    path: str, written: WrittenFile, source: int, group: Any, mistakes: list[CheckpointError], *, is_kept: bool
) -> None:
    """Send the file of the rank `source` of a group to all others; those with `is_kept` write it at `path`.

    A rank that cannot read or write it takes part all the same, and adds to `mistakes`.
    """
    if group.rank() == source:
        views = _old_views(path, written.num_bytes, mistakes)
    elif is_kept:
        views = _new_views(*os.path.split(path), written.num_bytes, mistakes)
    else:
        views = _scratch(written.num_bytes)
    for view in views:
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        group.broadcast([view], options).wait()


def _receive_head(rank: int, group: Any) -> Files:
    length = torch.empty(_LENGTH_BYTES, dtype=torch.uint8)
    group.recv([length], rank, 0).wait()
    head = torch.empty(int.from_bytes(bytes(length.tolist()), "little"), dtype=torch.uint8)
    group.recv([head], rank, 0).wait()
    files = {name: WrittenFile(*fields) for name, fields in json.loads(bytes(head.tolist())).items()}
    for name in files:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise CheckpointError(f"rank {rank} sends a file with the name {name!r}")
    return files


def _send(tensor: torch.Tensor, rank: int, group: Any) -> Any:
    return group.send([tensor], rank, 0)


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _new_views(folder: str, name: str, num_bytes: int, mistakes: list[CheckpointError]) -> Iterator[torch.Tensor]:
    """Yield the parts of a new file; those of memory that is thrown away if there can be no such file."""
    path = os.path.join(folder, name)
    try:
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if num_bytes:
                    os.posix_fallocate(descriptor, 0, num_bytes)  # a full memory is an error here, and no signal later
            finally:
                os.close(descriptor)
    except CheckpointError as error:
        mistakes.append(error)
        return _scratch(num_bytes)
    return _views(path, num_bytes)


def _old_views(path: str, num_bytes: int, mistakes: list[CheckpointError]) -> Iterator[torch.Tensor]:
    """Yield the parts of a file that is there; memory of any content if it cannot be read."""
    try:
        return iter(list(_views(path, num_bytes)))
    except (OSError, ValueError) as error:
        mistakes.append(CheckpointError(f"{path} cannot be read: {error}"))
        return _scratch(num_bytes)


def _views(path: str, num_bytes: int) -> Iterator[torch.Tensor]:
    if not num_bytes:
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        content = torch.frombuffer(mmap.mmap(descriptor, num_bytes), dtype=torch.uint8)
    finally:
        os.close(descriptor)
    yield from content.split(_PART_BYTES)  # type: ignore[no-untyped-call]


def _scratch(num_bytes: int) -> Iterator[torch.Tensor]:
    for start in range(0, num_bytes, _PART_BYTES):
        yield torch.empty(min(_PART_BYTES, num_bytes - start), dtype=torch.uint8)
