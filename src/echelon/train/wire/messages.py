"""Exchange values between the ranks of a group, as JSON and tensors, never pickled.

Send tensors from rank to rank, also where gloo carries a device's tensors, since ranks share a device.

Gloo sends and receives the memory of the CPU alone. From a device it fails with "writev: Bad address" (seen with
PyTorch 2.11 on an H200). So such tensors travel over a copy on the CPU.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from . import device as devices
from . import plain_data

Value = TypeVar("Value")
_HEAD_BYTES = 1024  # most values fit into one message
_LENGTH_BYTES = 8


def gather(value: Value, group: "dist.ProcessGroup | None" = None) -> list[Value]:
    content = plain_data.encode(value)
    device = _device_of(group)
    size = dist.get_world_size(group)
    mine = _head_of(content, device)
    heads = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(heads, mine, group=group)
    lengths = [_length(head) for head in heads]
    longest = max(lengths) - (_HEAD_BYTES - _LENGTH_BYTES)
    if longest <= 0:
        return [_value(head, length) for head, length in zip(heads, lengths, strict=False)]
    rest = _padded(content[_HEAD_BYTES - _LENGTH_BYTES :], longest, device)
    rests = [torch.empty_like(rest) for _ in range(size)]
    dist.all_gather(rests, rest, group=group)
    return [_value(torch.cat(pair), length) for *pair, length in zip(heads, rests, lengths, strict=False)]


def broadcast(value: object, source: int, group: "dist.ProcessGroup | None" = None, *, leaves_out: bool = False) -> Any:
    """Return the value of rank `source` on all ranks; `source` counts all ranks of the run."""
    device = _device_of(group)
    exchange = partial(dist.broadcast, src=source, group=group)
    if dist.get_rank() != source:
        return _taken(exchange, device)
    _give(exchange, plain_data.encode(value, leaves_out=leaves_out), device)
    return value


def send(value: object, target: int) -> None:
    """Send a value to one rank; it takes a few hundred bytes at least."""
    _give(partial(dist.send, dst=target), plain_data.encode(value), _device_of(None))


def receive(source: int) -> Any:
    return _taken(partial(dist.recv, src=source), _device_of(None))


def _give(exchange: Callable[[torch.Tensor], object], content: bytes, device: torch.device) -> None:
    exchange(_head_of(content, device))
    rest = content[_HEAD_BYTES - _LENGTH_BYTES :]
    if rest:
        exchange(_padded(rest, len(rest), device))


def _taken(exchange: Callable[[torch.Tensor], object], device: torch.device) -> Any:
    head = torch.empty(_HEAD_BYTES, dtype=torch.uint8, device=device)
    exchange(head)
    length = _length(head)
    if length > _HEAD_BYTES - _LENGTH_BYTES:
        rest = head.new_empty(length - (_HEAD_BYTES - _LENGTH_BYTES))
        exchange(rest)
        head = torch.cat([head, rest])
    return _value(head, length)


def _device_of(group: "dist.ProcessGroup | None") -> torch.device:
    """Return the device of a group's messages: the CPU if the group has a backend for it."""
    config = str(dist.get_backend_config(group))
    return devices.current(devices.CPU if "cpu:" in config else config.partition(":")[0])


def _head_of(content: bytes, device: torch.device) -> torch.Tensor:
    start = len(content).to_bytes(_LENGTH_BYTES, "little") + content[: _HEAD_BYTES - _LENGTH_BYTES]
    return _padded(start, _HEAD_BYTES, device)


def _padded(content: bytes, size: int, device: torch.device) -> torch.Tensor:
    filled = bytearray(content.ljust(size, b"\0"))
    return torch.frombuffer(filled, dtype=torch.uint8).to(device)


def _length(head: torch.Tensor) -> int:
    return int.from_bytes(bytes(head[:_LENGTH_BYTES].tolist()), "little")


def _value(content: torch.Tensor, length: int) -> Any:
    taken = content[_LENGTH_BYTES : _LENGTH_BYTES + length].cpu().contiguous()
    return plain_data.decode(plain_data.bytes_at(taken.data_ptr(), taken.numel()))


class To(NamedTuple):
    """A tensor, and the global rank to which it goes or from which it comes."""

    tensor: torch.Tensor
    rank: int


class TensorExchange:
    """Sends and receives tensors at the same time; all tensors of a rank are of one device."""

    def __init__(self, sends: Sequence[To], receives: Sequence[To], *, group: Any = None, tag: int = 0) -> None:
        self._received = [one.tensor for one in receives]
        self._sent = [_carried(one.tensor.contiguous(), group) for one in sends]  # kept until they are sent
        self._carriers = [_carrier(tensor, group) for tensor in self._received]
        wishes = [dist.P2POp(dist.isend, one, to.rank, group, tag) for one, to in zip(self._sent, sends, strict=False)]
        carried = zip(self._carriers, receives, strict=False)
        wishes += [dist.P2POp(dist.irecv, into, to.rank, group, tag) for into, to in carried]
        self._works = dist.batch_isend_irecv(wishes) if wishes else []

    def wait(self) -> list[torch.Tensor]:
        for work in self._works:
            work.wait()
        for tensor, carrier in zip(self._received, self._carriers, strict=False):
            if carrier is not tensor:
                tensor.copy_(carrier)
        return self._received


def send_tensors(tensor: torch.Tensor, rank: int, group: "dist.ProcessGroup | None" = None) -> None:
    dist.send(_carried(tensor.contiguous(), group), rank, group)


def receive_tensors(tensor: torch.Tensor, rank: int, group: "dist.ProcessGroup | None" = None) -> None:
    """Receive a tensor from a rank, into the memory of `tensor`."""
    carrier = _carrier(tensor, group)
    dist.recv(carrier, rank, group)
    if carrier is not tensor:
        tensor.copy_(carrier)


def _carried(tensor: torch.Tensor, group: "dist.ProcessGroup | None") -> torch.Tensor:
    return tensor.cpu() if _is_by_gloo(tensor, group) else tensor


def _carrier(tensor: torch.Tensor, group: "dist.ProcessGroup | None") -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu") if _is_by_gloo(tensor, group) else tensor


def _is_by_gloo(tensor: torch.Tensor, group: "dist.ProcessGroup | None") -> bool:
    device = tensor.device.type
    return device != "cpu" and f"{device}:gloo" in str(dist.get_backend_config(group))
