"""Messages between ranks are JSON and raw bytes: they arrive unchanged, and other bytes do nothing."""

import collections
import dataclasses
import datetime
import decimal
import json
import math
import os
import pathlib
import pickle
import subprocess
import urllib.error
import uuid
from http.client import HTTPMessage
from typing import Any, NamedTuple

import numpy
import pytest
import torch

from echelon.train.scaling_error import ScalingError
from echelon.train.wire import plain_data


class Point(NamedTuple):
    """A script's own named tuple."""

    x: Any
    y: Any


@dataclasses.dataclass
class Output(collections.OrderedDict[str, Any]):
    """A dict with attributes of the same names, as those of Hugging Face."""

    loss: Any = None

    def __post_init__(self) -> None:
        self["loss"] = self.loss


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A script's own dataclass."""

    size: int


class Own(RuntimeError):
    """An error that is made of other arguments than its text."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{code} at {where}")


def travel(value: Any) -> Any:
    return plain_data.decode(plain_data.encode(value))


PLAIN = [
    None, True, False, 0, -7, 1 << 200, -(1 << 100), 0.1, math.inf, -0.0, "text", "é\ud800\n", b"\x00\xff",
    bytearray(b"ab"), (), (1, (2, [3])), [], {}, {1: "a", (2, 3): None, "b": {"c": [b"d"]}}, {1, 2}, frozenset("a"),
    1 + 2j, slice(1, None, 2), range(3), torch.float16, torch.Size([2, 3]), torch.device("cuda", 1),
    datetime.datetime(2026, 1, 2, 3, 4, 5, 6), datetime.date(2026, 1, 2), datetime.timedelta(days=-1, seconds=3),
    decimal.Decimal("1.10"), uuid.UUID(int=5), pathlib.Path("a/b"), Point(1, [2]), Frozen(3),
    collections.OrderedDict(b=1, a=2), Output(loss=2.0), numpy.float32(0.1), numpy.str_("ä"),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_data_arrives_as_it_was(value: Any) -> None:
    """Equal, and of the same type."""
    told = travel(value)
    assert told == value
    assert type(told) is type(value)


def test_nan_arrives() -> None:
    """JSON of Python has a word for it."""
    assert math.isnan(travel([float("nan")])[0])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4), torch.randn(4, 3).t(), torch.tensor(5), torch.zeros(0, 3), torch.tensor([True, False]),
        torch.randn(5).bfloat16(), torch.randn(2, 2, dtype=torch.complex64), torch.tensor([-1, 2], dtype=torch.int8),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)  # fmt: skip
def test_tensors_arrive_bit_by_bit(tensor: torch.Tensor) -> None:
    """Values, shape and dtype; no gradient."""
    told = travel({"a": [tensor]})["a"][0]
    assert torch.equal(told, tensor)
    assert (told.dtype, told.requires_grad) == (tensor.dtype, False)


def test_shapes_without_numbers_arrive() -> None:
    """A tensor of the meta device says its shape and dtype alone."""
    told = travel(torch.empty(2, 3, dtype=torch.int32, device="meta"))
    assert (told.is_meta, tuple(told.shape), told.dtype) == (True, (2, 3), torch.int32)


def test_arrays_arrive() -> None:
    """The state of numpy's generator among them."""
    state: Any = numpy.random.get_state()
    told = travel(state)
    assert [type(part) for part in told] == [type(part) for part in state]
    assert (told[1] == state[1]).all()
    told[1][0] = 1  # it may be written to


def test_torch_results_and_finished_processes_arrive() -> None:
    """The results of torch.max and subprocess.run, and the headers of a download, arrive unchanged."""
    result = torch.max(torch.tensor([[1.0, 3.0]]), dim=1)
    assert type(travel(result)) is type(result)
    done = travel(subprocess.CompletedProcess(["a"], 3, b"out", None))
    assert (done.args, done.returncode, done.stdout) == (["a"], 3, b"out")
    headers = HTTPMessage()
    headers["Content-Type"] = "text/plain"
    assert travel(headers).get_content_type() == "text/plain"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(2, "No such file", "a"), FileNotFoundError),
        (KeyError("k"), KeyError),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), UnicodeDecodeError),
        (json.JSONDecodeError("bad", "{", 1), json.JSONDecodeError),
        (Own(1, "b"), RuntimeError),
        (ValueError(lambda: 0), ValueError),
        (ScalingError("a reason", "a way out"), ScalingError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_errors_arrive_as_except_clauses_know_them(error: BaseException, kind: type[BaseException]) -> None:
    """The class, or the nearest that can be made again, with the same text."""
    told = travel(error)
    assert type(told) is kind
    assert str(told) == str(error)


def test_an_error_of_a_module_that_is_not_imported_here() -> None:
    """Nothing is imported for it: the nearest class is taken."""
    content = plain_data.encode(urllib.error.ContentTooShortError("short", b""))
    told = plain_data.decode(content.replace(b'"urllib.error"', b'"urllib_error"'))
    assert type(told) is OSError
    assert "urllib_error" not in os.sys.modules  # type: ignore[attr-defined]


CANNOT_TRAVEL = [lambda: 0, object(), open(os.devnull), torch.ones(2).to_sparse()]  # noqa: SIM115


@pytest.mark.parametrize("value", CANNOT_TRAVEL, ids=lambda value: type(value).__name__)
def test_what_cannot_travel_is_refused_by_name(value: Any) -> None:
    """The class, and what can; or it is left out, where nobody asks for it."""
    with pytest.raises(ScalingError, match=f"a {type(value).__module__}.{type(value).__qualname__} cannot travel"):
        plain_data.encode([1, value])
    assert plain_data.decode(plain_data.encode((1, value), leaves_out=True)) == (1, None)


def test_a_value_that_holds_itself_is_refused() -> None:
    """It has no end."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ScalingError):
        plain_data.encode(value)


class Exploit:
    """Runs a command where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def forged(form: Any) -> bytes:
    """Return what a stranger may put together in our own form."""
    head = json.dumps([form, []]).encode()
    return len(head).to_bytes(8, "little") + head


@pytest.mark.parametrize(
    "form",
    [
        ["fields", "os", "system", ["touch"]],
        ["error", [["os", "system"]], None, "touch"],
        ["dataclass", "subprocess", "Popen", [["dict", ["args"], ["touch"]]]],
        ["mapping", "subprocess", "Popen", [["list", ["args"]], ["list", ["touch"]]]],
        ["fields", "builtins", "exec", [["list", ["1"]]]],
        ["kind", "eval", ["1"]],
        ["dtype", "load"],
        ["tensor", "load", [1], -1],
        ["tensor", "float32", [1 << 60], 0],
        ["nothing"],
        [],
        {"a": 1},
    ],
    ids=str,
)
def test_forged_messages_run_nothing(form: Any) -> None:
    """No function is called and no class is made that is no tuple, dataclass or error."""
    if form == {"a": 1}:
        assert plain_data.decode(forged(form)) == form
        return
    try:
        told = plain_data.decode(forged(form))
    except plain_data.NotPlain:
        return
    assert type(told) is RuntimeError  # of an error, its text is left


def test_pickled_objects_are_no_messages(tmp_path: pathlib.Path) -> None:
    """A stranger's pickle is not run, wherever it stands."""
    path = str(tmp_path / "made")
    content = pickle.dumps(Exploit(path))
    for message in (content, len(content).to_bytes(8, "little") + content, b"", b"\xff" * 8, plain_data.encode(1)[:-1]):
        with pytest.raises(plain_data.NotPlain):
            plain_data.decode(message)
    assert not os.path.exists(path)
