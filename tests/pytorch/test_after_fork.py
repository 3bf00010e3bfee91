"""What a rank renews of PyTorch after the fork that made it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from echelon.node import warm


@pytest.mark.parametrize(
    ("version", "calls"),
    [({"cuda": None, "hip": None}, []), ({"cuda": "13.2"}, [4]), ({"cuda": None, "hip": "6.4"}, [4])],
    ids=["cpu", "cuda", "rocm"],
)
def test_pool_of_threads_is_renewed_in_builds_for_devices(
    monkeypatch: pytest.MonkeyPatch, version: dict[str, Any], calls: list[int]
) -> None:
    """Only there autograd starts threads that would renew it at once; the number of threads stays."""
    seen: list[int] = []
    torch = SimpleNamespace(
        version=SimpleNamespace(**version), default_generator=SimpleNamespace(seed=lambda: None),
        get_num_threads=lambda: 4, set_num_threads=seen.append,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.delitem(sys.modules, "numpy.random", raising=False)
    warm.renew()
    assert seen == calls
