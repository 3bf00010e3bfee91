"""The event log: what is read, and what is refused with the name of the field."""

import copy
from typing import Any

import pytest
from tests.estimate.logs import Written

from echelon.estimate import log as logs


def small() -> Written:
    """Return the smallest log of a training."""
    log = Written(blocks=("layers.0",), modules=("", "layers.0"))
    log.weight("layers.0.weight", 400, 0, length=10)
    log.mark("step")
    log.mark("enter", 0)
    kept = log.new(100, "activation", module="layers.0", grows=True)
    log.mark("leave", 0)
    log.mark("backward")
    log.free(kept)
    log.mark("optimizer")
    log.mark("end")
    return log


def test_log_is_read() -> None:
    """Every field arrives, borders as tuples."""
    log = small().read()
    assert (log.torch, log.device, log.rows, log.forward_flops, log.backward_flops) == ("2.13.0", "gpu", 8, 10, 20)
    assert log.weights == (logs.Weight(name="layers.0.weight", num_bytes=400, block=0, tensor=0, length=10),)
    assert log.tensors == (
        logs.LoggedTensor(400, "parameter", 0, False),
        logs.LoggedTensor(100, "activation", 1, True),
    )
    assert log.events == (0, "step", ("enter", 0), 1, ("leave", 0), "backward", -2, "optimizer", "end")


def test_rows_may_be_unknown() -> None:
    """A script without batches has no rows."""
    assert logs.read(small().data | {"rows": None}).rows == 0


WRONG: list[tuple[tuple[Any, ...], Any, str]] = [
    (("format",), 2, "format"),
    (("torch",), None, "torch"),
    (("rows",), 0, "rows"),
    (("rows",), True, "rows"),
    (("flops", "forward"), 1.5, "flops.forward"),
    (("blocks",), "layers", "blocks"),
    (("blocks", 0), 3, "blocks[0]"),
    (("modules", 1), None, "modules[1]"),
    (("tensors", 1), [1, "activation", 0], "tensors[1]"),
    (("tensors", 1, 0), -1, "tensors[1]: bytes"),
    (("tensors", 1, 1), "other", "tensors[1]: category"),
    (("tensors", 1, 2), 2, "tensors[1]: module"),
    (("tensors", 1, 3), 2, "tensors[1]: grows"),
    (("weights", 0), 3, "weights[0]"),
    (("weights", 0, "name"), 3, "weights[0].name"),
    (("weights", 0, "bytes"), -3, "weights[0].bytes"),
    (("weights", 0, "block"), 1, "weights[0].block"),
    (("weights", 0, "tensor"), 9, "weights[0].tensor"),
    (("weights", 0, "length"), "9", "weights[0].length"),
    (("events", 0), 7, "events[0]: a tensor"),
    (("events", 0), -1, "events[0]: freed, but not allocated"),
    (("events", 3), 0, "events[3]: allocated twice"),
    (("events", 1), "start", "events[1]: a phase"),
    (("events", 2), ["enter"], "events[2]"),
    (("events", 2), ["enter", 1], "events[2]: a block"),
    (("events", 7), "end", "events: no step reached the phase 'optimizer'"),
]


@pytest.mark.parametrize(
    ("where", "value", "field"), WRONG, ids=[f"{row[2]} {index}" for index, row in enumerate(WRONG)]
)
def test_wrong_field_is_named(where: tuple[Any, ...], value: Any, field: str) -> None:
    """The message begins with the field, and shows the value."""
    data = copy.deepcopy(small().data)
    holder = data
    for key in where[:-1]:
        holder = holder[key]
    holder[where[-1]] = value
    with pytest.raises(ValueError, match=r"^event log: ") as refused:
        logs.read(data)
    assert str(refused.value).startswith(f"event log: {field}")


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_other_values_are_no_log(value: Any) -> None:
    """What is no object is refused as such."""
    with pytest.raises(ValueError, match="not an object of JSON"):
        logs.read(value)


def test_long_value_is_shortened() -> None:
    """A message stays short."""
    with pytest.raises(ValueError, match=r"…$") as refused:
        logs.read(small().data | {"torch": ["x" * 1000]})
    assert len(str(refused.value)) < 200
