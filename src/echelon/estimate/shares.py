"""Divide bytes among ranks: the one owner of how a part is rounded."""

from __future__ import annotations


def share(num_bytes: int, num_ranks: int, *, length: int = 0) -> int:
    """Return the bytes of the largest part; with a length, a tensor is cut along this dim and whole rows are dealt.

    >>> share(100, 3), share(100, 3, length=10)
    (34, 40)
    """
    if num_ranks == 1:
        return num_bytes
    if length:
        return -(-length // num_ranks) * (num_bytes // length)
    return -(-num_bytes // num_ranks)
