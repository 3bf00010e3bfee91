"""The parameters of a sweep: the values that -p gives to each, all their combinations, and random ones."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from echelon.errors import UsageError, seen

FORMS = "1e-3,3e-4; 64:1024:log2; 0:9; 0:1:0.25; 1e-5:1e-2:log"
MOST_TRIALS = 10_000
OWN = ("trial", "folder")
"""The names of what a sweep itself gives: the number of a trial, and its run directory."""
VARIABLE = "ECHELON_SWEEP_"
POWERS = {"log2": 2, "log10": 10}
_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_PLACE = re.compile(r"\{(" + _NAME + r")\}")
_NUMBER = r"[-+]?(?:[0-9]{1,40}(?:\.[0-9]*)?|\.[0-9]{1,15})(?:[eE][-+]?[0-9]{1,2})?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(?::(.*))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptParameter:
    """A parameter and its values: those of a list, or numbers from low to high."""

    name: str
    texts: tuple[str, ...] = ()
    """The values of a list; empty: a range."""
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    """The distance of two numbers, or with `is_log` their ratio; 0: each real number between low and high."""
    is_log: bool = False

    @property
    def variable(self) -> str:
        """Return the name of the variable that has the value in the ranks."""
        return VARIABLE + re.sub(r"[^A-Z0-9]", "_", self.name.upper())

    @property
    def num_values(self) -> int:
        """Return the number of values; 0: infinitely many."""
        if self.texts or not self.step:
            return len(self.texts)
        span = math.log(self.high / self.low, self.step) if self.is_log else (self.high - self.low) / self.step
        return math.floor(span + 1e-9) + 1

    def value(self, index: int) -> str:
        if self.texts:
            return self.texts[index]
        number = self.low * self.step**index if self.is_log else self.low + self.step * index
        return str(number) if isinstance(number, int) else f"{number:.10g}"

    def between(self, share: float) -> str:
        """Return the value at a share of the way from low to high."""
        if self.num_values:
            return self.value(int(share * self.num_values))
        rise = self.high - self.low
        number = self.low * (self.high / self.low) ** share if self.is_log else self.low + rise * share
        return str(round(number)) if isinstance(rise, int) else f"{number:.6g}"


def read(texts: Sequence[str]) -> tuple[SweptParameter, ...]:
    """Return the parameters of all -p KEY=VALUES; raise UsageError for one that is none."""
    by_variable: dict[str, SweptParameter] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not re.fullmatch(_NAME, name):
            raise UsageError(f"-p {seen(text)}: give a name, = and its values: {FORMS}", hint="-p lr=1e-3,3e-4")
        if name in OWN:
            raise UsageError(f"-p {text}: echelon itself sets {' and '.join(OWN)} in each trial", hint=f"-p my_{text}")
        match = _RANGE.fullmatch(values)
        parameter = _range(name, values, match) if match and "," not in values else _listed(name, values)
        other = by_variable.setdefault(parameter.variable, parameter)
        if other is not parameter:
            raise UsageError(
                f"-p {other.name} and -p {name} both set {parameter.variable}",
                hint=f"-p {name}=A,B   with all values" if other.name == name else f"-p {name}_2={values}",
            )
    return tuple(by_variable.values())


def _listed(name: str, values: str) -> SweptParameter:
    texts = values.split(",")
    ranges = [text for text in texts if _RANGE.fullmatch(text) and text.rpartition(":")[2] in ("log", *POWERS)]
    if "" in texts or ranges:
        why = f"the range {ranges[0]} stands in a list" if ranges else "a value is empty"
        raise _wrong(name, values, f"{why}; give values: {FORMS}", ranges[0] if ranges else "1,2,4")
    return SweptParameter(name=name, texts=tuple(texts))


def _range(name: str, values: str, match: re.Match[str]) -> SweptParameter:
    low, high, how = _number(match[1]), _number(match[2]), match[3]
    is_log = how == "log" or how in POWERS
    if low > high:
        raise _wrong(name, values, f"the range is empty: {match[1]} is above {match[2]}", "1:8")
    if is_log and low <= 0:
        begins = f"a logarithmic range begins above 0, and this one begins at {match[1]}"
        raise _wrong(name, values, begins, f"1e-5:1:{how}")
    step: float = 1 if how is None and isinstance(high - low, int) else POWERS.get(how, 0)
    if how is not None and not is_log:
        step = _number(how) if re.fullmatch(_NUMBER, how) else 0
        if step <= 0:
            forms = "after the second colon comes a step above 0, or log, log2 or log10"
            raise _wrong(name, values, forms, f"{match[1]}:{match[2]}:log2")
    return SweptParameter(name=name, low=low, high=high, step=step, is_log=is_log)


def _wrong(name: str, values: str, why: str, repair: str) -> UsageError:
    return UsageError(f"-p {name}={values}: {why}", hint=f"-p {name}={repair}")


def _number(text: str) -> float:
    return int(text) if re.fullmatch(r"[-+]?[0-9]+", text) else float(text)


def grid(parameters: Sequence[SweptParameter]) -> list[dict[str, str]]:
    """Return all combinations, the last parameter changing first; raise UsageError if there are too many."""
    endless = [parameter for parameter in parameters if not parameter.num_values]
    size = math.prod(parameter.num_values for parameter in parameters)
    if endless or size > MOST_TRIALS:
        many = f"there are {size} combinations, and a sweep tries at most {MOST_TRIALS}"
        why = f"there is no end of numbers in the range of -p {endless[0].name}" if endless else many
        raise UsageError(f"{why}; say how many trials to draw, or give a step", hint="--samples 32")
    names = [parameter.name for parameter in parameters]
    values = [map(parameter.value, range(parameter.num_values)) for parameter in parameters]
    return [dict(zip(names, combination, strict=True)) for combination in itertools.product(*values)]


def draws(parameters: Sequence[SweptParameter], number: int, seed: int) -> list[dict[str, str]]:
    """Return random combinations, each once; all of them if there are no more."""
    source = random.Random(seed)
    if 0 < math.prod(parameter.num_values for parameter in parameters) <= number:
        return grid(parameters)
    drawn: dict[tuple[str, ...], dict[str, str]] = {}
    for _ in range(1000 * number):  # equal ones are drawn again, but not for ever: a real range may be tiny
        values = {parameter.name: parameter.between(source.random()) for parameter in parameters}
        drawn.setdefault(tuple(values.values()), values)
        if len(drawn) == number:
            break
    return list(drawn.values())


def places(words: Sequence[str]) -> list[str]:
    """Return the names that stand in braces."""
    return [name for word in words for name in _PLACE.findall(word)]


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the words with the values in place of their names; other braces stay."""
    return [_PLACE.sub(lambda match: values.get(match[1], match[0]), word) for word in words]
