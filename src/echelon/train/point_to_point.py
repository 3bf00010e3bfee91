"""Send tensors from rank to rank, also where gloo carries a device's tensors, since ranks share a device.

Gloo sends and receives the memory of the CPU alone. From a device it fails with "writev: Bad address" (seen with
PyTorch 2.11 on an H200). So such tensors travel over a copy on the CPU.
"""

from typing import Any, List, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist


class To(NamedTuple):
    """A tensor, and the global rank to which it goes or from which it comes."""

    tensor: torch.Tensor
    rank: int


class Exchange:
    """Sends and receives tensors at the same time; all tensors of a rank are of one device."""

    def __init__(self, sends: Sequence[To], receives: Sequence[To], *, group: Any = None, tag: int = 0) -> None:
        self._received = [one.tensor for one in receives]
        self._sent = [_carried(one.tensor.contiguous(), group) for one in sends]  # kept until they are sent
        self._carriers = [_carrier(tensor, group) for tensor in self._received]
        wishes = [dist.P2POp(dist.isend, one, to.rank, group, tag) for one, to in zip(self._sent, sends)]  # noqa: B905
        wishes += [
            dist.P2POp(dist.irecv, into, to.rank, group, tag)
            for into, to in zip(self._carriers, receives)  # noqa: B905
        ]
        self._works = dist.batch_isend_irecv(wishes) if wishes else []

    def wait(self) -> List[torch.Tensor]:
        """Return the received tensors."""
        for work in self._works:
            work.wait()
        for tensor, carrier in zip(self._received, self._carriers):  # noqa: B905
            if carrier is not tensor:
                tensor.copy_(carrier)
        return self._received


def send(tensor: torch.Tensor, rank: int, group: Any = None) -> None:
    """Send a tensor to a rank."""
    dist.send(_carried(tensor.contiguous(), group), rank, group)


def receive(tensor: torch.Tensor, rank: int, group: Any = None) -> None:
    """Receive a tensor from a rank, into the memory of `tensor`."""
    carrier = _carrier(tensor, group)
    dist.recv(carrier, rank, group)
    if carrier is not tensor:
        tensor.copy_(carrier)


def _carried(tensor: torch.Tensor, group: Optional[Any]) -> torch.Tensor:
    return tensor.cpu() if _is_by_gloo(tensor, group) else tensor


def _carrier(tensor: torch.Tensor, group: Optional[Any]) -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu") if _is_by_gloo(tensor, group) else tensor


def _is_by_gloo(tensor: torch.Tensor, group: Optional[Any]) -> bool:
    device = tensor.device.type
    return device != "cpu" and "%s:gloo" % device in str(dist.get_backend_config(group))
