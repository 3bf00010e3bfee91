"""Annotations of the script are resolved in its own namespace."""

from __future__ import annotations

import dataclasses
import typing


@dataclasses.dataclass
class Node:
    next: Node | None = None
    label: typing.Optional[str] = None  # noqa: UP045


print(Node.__module__, Node.__qualname__, Node.__annotations__)
print(__annotations__)
