"""What a function carries through its loops is put into the same function at its first iteration, which goes on."""

import functools
import itertools
import logging
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import numpy
import pytest
import torch

from echelon.train.replay.changes import changes_of
from echelon.train.replay.picture import FirstPicture, Picture
from echelon.train.replay.placing import Placing
from echelon.train.replay.value_stack import Unclear, called_names, live_names, loops_of
from echelon.train.wire import plain_data

Stop = Callable[[], None]
Pair = namedtuple("Pair", "left right")


class Meter:
    """What scripts write: a sum, and values of its own."""

    def __init__(self) -> None:
        self.total, self.values, self.best = 0.0, defaultdict(list), None

    def add(self, value: float) -> None:
        self.total += value
        self.values[int(value) % 3].append(value)
        self.best = max(value, self.best or 0.0)


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def counting(stop: Stop) -> Iterator[object]:
    meter, history, window = Meter(), [], deque(maxlen=3)
    slotted, counts = Slotted(), numpy.zeros(3)
    chance = torch.Generator().manual_seed(5)
    alias = history
    for epoch in range(1, 12, 2):
        for place, value in enumerate([0.5, 1.5, epoch], start=epoch):
            stop()
            meter.add(value * place)
            history.append(value)
            window.append(Pair(epoch, value))
            slotted.count += 1
            counts[place % 3] += torch.randint(9, (1,), generator=chance).item()
            yield (
                epoch,
                place,
                meter.total,
                meter.best,
                dict(meter.values),
                list(alias),
                list(window),
                slotted.count,
                counts.tolist(),
            )


def generating(stop: Stop) -> Iterator[object]:
    def batches(size: int) -> Iterator[list[int]]:
        order = list(range(12))
        for begin in range(0, len(order), size):
            yield order[begin : begin + size]

    count = 0
    for size in (3, 3, 3):
        for batch in batches(size):
            count += sum(batch)
            stop()
            yield size, batch, count


def closing(stop: Stop) -> Iterator[object]:
    count, rest = 0, {"patience": 3, "seen": set()}
    chance = random.Random(4)

    def step(value: int) -> int:
        nonlocal count
        count += value
        rest["seen"].add(value)
        return count

    best: dict[str, object] = OrderedDict()
    for number in range(20):
        stop()
        best["last"] = (step(number), chance.random())
        yield number, dict(best), sorted(rest["seen"])


def zipping(stop: Stop) -> Iterator[object]:
    total = 0
    with torch.no_grad():
        for left, right in zip([1, 2, 3, 4, 5], range(5), strict=True):
            names = {"a": left, "b": [right]}
            for number in reversed(range(3)):
                stop()
                total += left * right + number
                yield total, names, torch.is_grad_enabled()


def alike(stop: Stop) -> Iterator[object]:
    """Values change to others that are equal to them, or have their hash."""
    value, signed, labels, names, many = 1.0, 0.0, [1] * 12, {1: "a"}, [-1] * 20_000
    for number in range(12):
        stop()
        yield repr((value, signed, labels, names)), sum(many)
        value, signed, labels[number], many[number] = 1, -0.0, True, -2
        names.clear()
        names[True] = "a"


def filling(stop: Stop) -> Iterator[object]:
    """The variable of two inner functions gets its first value in the loop."""

    def made() -> tuple[Callable[[int], None], Callable[[], int]]:
        late: int

        def keep(value: int) -> None:
            nonlocal late
            late = value

        def shown() -> int:
            return late

        return keep, shown

    keep, shown = made()
    for number in range(12):
        stop()
        yield shown() if number else None
        keep(number)


class Ticking:
    """Objects that change their class, keep a slot with a name of its own, or are a list."""

    calls = 0

    def tick(self) -> int:
        type(self).calls += 1
        return type(self).calls


class Hidden:
    __slots__ = ("__count",)

    def __init__(self) -> None:
        self.__count = 0

    def add(self) -> int:
        self.__count += 1
        return self.__count


class Rest(list[int]):
    pass


class Best(NamedTuple):
    step: int
    loss: float


def holding(stop: Stop) -> Iterator[object]:
    """Objects of classes of all kinds; a Counter counts what it is updated with."""
    Ticking.calls = 0
    ticking, hidden, rest, best = Ticking(), Hidden(), Rest([1, 2, 3]), Best(0, 9.0)
    seen: Counter[int] = Counter()
    for number in range(12):
        stop()
        yield Ticking.calls, list(rest), best, dict(seen), number
        best = Best(best.step + 1, best.loss / 2)
        seen[number % 3] += ticking.tick() + hidden.add()
        rest.clear()


class Counted(logging.Handler):
    """A handler of the script that carries a count."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.number += len(record.msg)


Counted.__module__ = "loggers"  # which may be any module: the class is not taken apart


def changing_what_others_made(stop: Stop) -> Iterator[object]:
    """The script gives attributes to what libraries have made."""
    logger, handler = logging.getLogger("of a loop"), Counted()
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel("INFO")
    power = functools.partial(pow, exp=1)
    power.calls = 0  # type: ignore[attr-defined]
    layer = torch.nn.BatchNorm1d(2)
    layer.register_buffer("late", None)
    for number in range(12):
        stop()
        yield handler.number, logger.level, power.keywords["exp"], vars(power)["calls"], layer.late is None
        logger.info("word")
        power.keywords["exp"] += 1
        vars(power)["calls"] += 2
        if number == 3:
            logger.setLevel("ERROR")
            layer.late = torch.ones(3)


LOOPS = [counting, generating, closing, zipping, alike, filling, holding, changing_what_others_made]


class Seen:
    """Looks at the frame of a loop at each stop."""

    def __init__(self, at_stop: Callable[[int, FrameType], None]) -> None:
        self.number = 0
        self._at_stop = at_stop

    def __call__(self) -> None:
        self.number += 1
        self._at_stop(self.number, sys._getframe(1))


Seen.__module__ = "echelon"  # a picture leaves out what belongs to echelon


def picture_of(frame: FrameType, begun: "FirstPicture | None" = None) -> Picture:
    picture = Picture({}, __name__.__eq__, begun)
    picture.add(frame, "0:loop")
    return picture


def saved(loop: Any, number: int) -> bytes:
    """Return what a loop carries at a stop."""
    kept: list[Any] = []

    def look(stop: int, frame: FrameType) -> None:
        if stop == 1:
            kept.append(picture_of(frame).begun())
        if stop == number:
            picture = picture_of(frame, kept[0])
            changes = changes_of(picture, kept[0])
            assert not picture.refusals
            kept.append(plain_data.encode(list(changes)))

    values = loop(Seen(look))
    while len(kept) < 2:
        next(values)
    return bytes(kept[1])


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("number", [2, 5, 11])
def test_loop_goes_on_from_its_picture(loop: Any, number: int) -> None:
    wanted = list(loop(lambda: None))[number - 1 :]
    nodes, places = plain_data.decode(saved(loop, number))

    def put(stop: int, frame: FrameType) -> None:
        if stop == 1:
            Placing(nodes, places, picture_of(frame), None, {}).put()  # type: ignore[arg-type]

    assert list(loop(Seen(put))) == wanted


def refusals_of(loop: Any) -> str:
    kept: list[Any] = []

    def look(stop: int, frame: FrameType) -> None:
        picture = picture_of(frame, kept[0] if kept else None)
        if kept:
            changes_of(picture, kept[0])
        kept.append(picture.begun())
        kept.append(picture.refusals)

    values = loop(Seen(look))
    for _ in range(3):
        next(values)
    return " ".join(f"{path}: {reason}" for path, reason in kept[3])


def cycling(stop: Stop) -> Iterator[object]:
    for number in itertools.cycle([1, 2]):
        stop()
        yield number


def reading(stop: Stop) -> Iterator[object]:
    with open(__file__) as file:
        for number in range(5):
            stop()
            yield number, file.readline()


def making(stop: Stop) -> Iterator[object]:
    layers = []
    for number in range(5):
        layers.append(torch.nn.Linear(1, 1))
        stop()
        yield number, layers


def of_others(stop: Stop) -> Iterator[object]:
    lists = [[1], [10], [20]]
    for number in range(3):
        for entry in lists[number]:
            stop()
            yield entry


def of_a_dict(stop: Stop) -> Iterator[object]:
    for entry in {"a": 1, "b": 2, "c": 3}.items():
        stop()
        yield entry


def forgetting(stop: Stop) -> Iterator[object]:
    ticking = Ticking()
    ticking.calls = 5
    for number in range(3):
        stop()
        yield number
        if number == 0:
            del ticking.calls


def popping(stop: Stop) -> Iterator[object]:
    pool = set(range(100))
    for number in range(3):
        stop()
        yield number
        pool &= {97, 98, 99}
        pool |= {1, 128, 640}


def slicing(stop: Stop) -> Iterator[object]:
    whole = numpy.zeros(8)
    part = whole[:4]
    for number in range(3):
        stop()
        yield number, part.sum()
        part = whole[4:]
        part += 1


def regrouping(stop: Stop) -> Iterator[object]:
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    for number in range(3):
        stop()
        yield number
        optimizer.param_groups[0]["params"] = weights[1:]


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (of_others, "this loop is over another object than at its first time"),
        (of_a_dict, "this loop is over a dict, a set or a text"),
        (forgetting, "0:loop.ticking: its attribute calls was deleted"),
        (popping, "0:loop.pool: the order of this set comes from what was in it before"),
        (slicing, "0:loop.part: it is a part of another array, made in the loop"),
        (regrouping, "0:loop.optimizer: it"),
        (cycling, "0:loop.loop-0: an object of itertools.cycle cannot be saved and put back"),
        (reading, "0:loop.file: it is a file that is read"),
        (making, "0:loop.layers.1: this Linear was made in the loop"),
    ],
)
def test_what_cannot_be_put_back_is_named(loop: Any, told: str) -> None:
    assert told in refusals_of(loop)


def test_call_in_the_middle_of_an_expression_is_unclear() -> None:
    def look() -> int:
        with pytest.raises(Unclear, match="in the middle of an expression"):
            loops_of(sys._getframe(1))
        return 1

    total = 0
    for number in range(2):
        total = number + look()
    assert total == 2


def test_variables_that_are_written_before_they_are_read_do_not_count() -> None:
    seen: list[Any] = []

    def look() -> None:
        seen.append((live_names(sys._getframe(1)), called_names(sys._getframe(1))))

    def loop() -> int:
        total = 0
        for number in range(3):
            look()
            square = number * number
            total += square
        return total

    loop()
    live, called = seen[1]
    assert {"total", "number"} <= live
    assert "square" not in live
    assert "look" in called
