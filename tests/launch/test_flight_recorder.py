"""Dumps of PyTorch's flight recorder are read, and no code in them is run."""

import os
import pickle
from pathlib import Path

import pytest

from echelon.node.flight_recorder import pending, read


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


def test_dump_that_would_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle that asks for a function gives nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dump-0").write_bytes(pickle.dumps({"entries": [{"retired": False, "profiling_name": Evil()}]}))
    assert pending(0, {"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump-"}, 0.0) == ""
    assert not (tmp_path / "evil").exists()


def test_dump_of_an_earlier_attempt(tmp_path: Path) -> None:
    """A file from before the attempt says nothing about it; a torn file says nothing at all."""
    content = pickle.dumps({"entries": [{"retired": False, "profiling_name": "nccl:broadcast", "input_sizes": [[3]]}]})
    (tmp_path / "dump-0").write_bytes(content)
    (tmp_path / "dump-1").write_bytes(content[:-9])
    environ = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/dump-"}
    assert pending(0, environ, 0.0) == "broadcast number ? of [[3]]"
    assert pending(0, environ, 1e12) == ""
    assert pending(1, environ, 0.0) == ""


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values(protocol: int) -> None:
    """Plain values are those that were written."""
    value = {
        "a": [1, -2, 3 << 40, 1.5, None, True, False, "ä"],
        "b": [{"c": (1, 2)}, (), (1,), (1, 2, 3, 4)],
        "d": {},
    }
    value["e"] = value["a"]
    assert read(pickle.dumps(value, protocol)) == value


def test_dump_of_this_pytorch() -> None:
    """What PyTorch itself writes can be read."""
    torch = pytest.importorskip("torch._C._distributed_c10d")
    assert read(torch._dump_fr_trace())["version"]
