"""The iterators of the loops that a function is in: CPython keeps them on its value stack, which no Python code shows.

The words of a frame are read from memory. A trial with loops over known objects finds their place; where it fails,
nothing is read. What lies where on the stack follows from the bytecode.
"""

import ctypes
import dis
import itertools
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

ITERATOR, MANAGER = "an iterator", "the end of a with block"
_WORD = ctypes.sizeof(ctypes.c_void_p)
_SEE_ALL = ("globals", "locals", "vars", "exec", "eval", "dir")
_TAGS = 7
"""The lowest bits of a word, in which Python 3.14 keeps more than the address."""
_MOST_WORDS = 64
_CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION", "CALL_METHOD", "CALL_FUNCTION_KW", "CALL_FUNCTION_EX")
_WAITS = ("SEND", "YIELD_FROM", "YIELD_VALUE")
_ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE")
_JUMPS = ("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
_SETUPS = ("SETUP_FINALLY", "SETUP_WITH", "SETUP_ASYNC_WITH")
"""They jump when an error is raised; Python 3.10 alone has them."""


class Unclear(Exception):
    """A function waits where more is in the balance than its variables and loops; the text says what."""


class _Analysis(NamedTuple):
    offsets: tuple[int, ...]
    instructions: tuple[dis.Instruction, ...]
    stacks: dict[int, tuple[str, ...]]
    """By the offset of each instruction that is reached without an error: what is on the stack before it."""


def place_of(frame: FrameType) -> int:
    analysis = _analysis(frame.f_code)
    at = bisect_right(analysis.offsets, max(frame.f_lasti, 0)) - 1
    if at and analysis.instructions[at].opname == "RESUME" and analysis.instructions[at - 1].opname == "YIELD_VALUE":
        at -= 1  # Python 3.13 is one instruction further
    return analysis.offsets[at]


def place_in_words(frame: FrameType) -> str:
    """Return the place of a frame in words that stay when other lines are added: "CALL fit 1", the second such call."""
    code, place = frame.f_code, place_of(frame)
    alike = [offset for offset in _analysis(code).offsets if _deed(code, offset) == _deed(code, place)]
    return "{} {}".format(" ".join(_deed(code, place)), alike.index(place))


def _deed(code: CodeType, place: int) -> tuple[str, ...]:
    """Return what an instruction does, in words that are the same in each version of Python."""
    analysis = _analysis(code)
    name = _at(analysis, place).opname
    if name not in _CALLS:
        return ("YIELD_FROM" if name == "SEND" else name,)
    try:
        words = analysis.stacks[place][len(_kinds(code, place)) :][: 1 if name.startswith("CALL_FUNCTION") else 2]
    except (Unclear, KeyError):
        words = ()
    return ("CALL", *[word for word in words if word not in dis.opmap][-1:])


def loops_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Return what is on the stack of a frame that waits in a call, in a loop's request or in a yield, with its kind.

    Raises Unclear where there is anything else than iterators and the ends of with blocks.
    """
    kinds = _kinds(frame.f_code, place_of(frame))
    if not kinds:
        return []
    layout = _layout()
    if layout is None:
        raise Unclear(f"Python {sys.version.split()[0]} does not show the iterators of its loops")
    first = _num_variables(frame.f_code)
    words = layout.words(frame, first + len(kinds))[first:]
    return [(kind, ctypes.cast(word, ctypes.py_object).value) for kind, word in zip(kinds, words, strict=True)]


def called_names(frame: FrameType) -> tuple[str, ...]:
    """Return the names by which a frame may have found what it calls now; none where it calls nothing by name."""
    code, place = frame.f_code, place_of(frame)
    instruction = _at(_analysis(code), place)
    return _analysis(code).stacks[place][len(_kinds(code, place)) :][:2] if instruction.opname in _CALLS else ()


def live_names(frame: FrameType) -> set[str]:
    """Return the names of the function that may be read before it gives them other values."""
    code = frame.f_code
    return {*code.co_varnames, *code.co_names} if sees_all(code) else set(_live(code, place_of(frame)))


@lru_cache(maxsize=256)
def sees_all(code: CodeType) -> bool:
    """Say whether a function may read variables without their names."""
    return any(
        instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval in _SEE_ALL
        for instruction in _analysis(code).instructions
    )


def put_variables(frame: FrameType, values: Mapping[str, Any]) -> None:
    variables = frame.f_locals  # reading it once more would undo the change before Python 3.13
    variables.update(values)
    if sys.version_info < (3, 13) and variables is not frame.f_globals:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


@lru_cache(maxsize=256)
def _kinds(code: CodeType, place: int) -> tuple[str, ...]:
    analysis = _analysis(code)
    if place not in analysis.stacks:
        raise Unclear("it is in an except or finally block")
    stack, name = analysis.stacks[place], _at(analysis, place).opname
    if name in _CALLS:
        instruction = _at(analysis, place)
        kept = stack[: len(stack) + dis.stack_effect(instruction.opcode, instruction.arg, jump=False) - 1]
    elif name in _WAITS:
        kept = stack[:-1]
    elif name == "FOR_ITER":
        kept = stack
    else:
        raise Unclear("it is in the middle of an expression")
    if any(kind not in (ITERATOR, MANAGER) for kind in kept):
        raise Unclear("it is in the middle of an expression")
    return kept


def _at(analysis: _Analysis, place: int) -> dis.Instruction:
    return analysis.instructions[bisect_right(analysis.offsets, place) - 1]


@lru_cache(maxsize=256)
def _analysis(code: CodeType) -> _Analysis:
    instructions = tuple(dis.get_instructions(code))
    offsets = tuple(one.offset for one in instructions)
    stacks: dict[int, tuple[str, ...]] = {}
    waiting: list[tuple[int, tuple[str, ...]]] = [(0, ())]
    while waiting:
        at, stack = waiting.pop()
        if at >= len(instructions) or offsets[at] in stacks:
            continue
        stacks[offsets[at]] = stack
        for target, jumps in _successors(instructions[at], at, offsets):
            waiting.append((target, _after(instructions[at], stack, jumps=jumps)))
    return _Analysis(offsets, instructions, stacks)


def _successors(instruction: dis.Instruction, at: int, offsets: tuple[int, ...]) -> Iterator[tuple[int, bool]]:
    """Yield the places of the instructions that may come next without an error, and whether by a jump."""
    name = instruction.opname
    if name not in _ENDS and name not in _JUMPS:
        yield at + 1, False
    if (instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs) and name not in _SETUPS:
        yield bisect_right(offsets, instruction.argval) - 1, True


def _after(instruction: dis.Instruction, stack: tuple[str, ...], *, jumps: bool) -> tuple[str, ...]:
    argument = instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
    change = dis.stack_effect(instruction.opcode, argument, jump=jumps)
    word = instruction.argval if isinstance(instruction.argval, str) else instruction.opname
    stack = stack[: len(stack) + change] if change < 0 else stack + (word,) * change
    if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
        return (*stack[:-1], word)
    if instruction.opname in ("GET_ITER", "GET_YIELD_FROM_ITER"):
        return (*stack[:-1], ITERATOR)
    if instruction.opname in ("BEFORE_WITH", "SETUP_WITH"):
        return (*stack[:-2], MANAGER, stack[-1])
    return stack


@lru_cache(maxsize=256)
def _live(code: CodeType, place: int) -> frozenset[str]:
    """Return the names that are read after a place before they are written; those of error handlers always count."""
    analysis = _analysis(code)
    reads, writes = zip(*map(_access, analysis.instructions), strict=True)
    reached = [offset in analysis.stacks for offset in analysis.offsets]
    always = {name for read, is_reached in zip(reads, reached, strict=True) if not is_reached for name in read}
    nexts = [
        [target for target, _ in _successors(one, at, analysis.offsets)] for at, one in enumerate(analysis.instructions)
    ]
    live: list[set[str]] = [set() for _ in reads]
    is_changing = True
    while is_changing:
        is_changing = False
        for at in reversed(range(len(live))):
            after = {name for target in nexts[at] if target < len(live) for name in live[target]}
            now = (after - writes[at]) | reads[at]
            is_changing |= now != live[at]
            live[at] = now
    at = bisect_right(analysis.offsets, place) - 1
    cells = {*code.co_cellvars, *code.co_freevars}
    return frozenset({name for target in nexts[at] for name in live[target]} | always | cells)


def _access(instruction: dis.Instruction) -> tuple[set[str], set[str]]:
    """Return the names that an instruction reads, and those that it writes without reading them before."""
    name, names = instruction.opname, instruction.argval
    if name == "STORE_FAST_LOAD_FAST":
        return {names[1]} - {names[0]}, {names[0]}
    names = {one for one in (names if isinstance(names, tuple) else (names,)) if isinstance(one, str)}
    is_write = name in ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_FAST_STORE_FAST")
    return (set(), names) if is_write else (names, set())


def _num_variables(code: CodeType) -> int:
    """Return the number of words before the stack: an argument that an inner function uses has one word since 3.11."""
    own = len(code.co_varnames)
    shared = set(code.co_cellvars) & set(code.co_varnames) if sys.version_info >= (3, 11) else ()
    return own + len(code.co_cellvars) - len(shared) + len(code.co_freevars)


class _Layout(NamedTuple):
    pointer_offset: int
    """The place of a pointer in the frame object to what has the words; -1: the object has them itself."""
    offset: int

    def words(self, frame: FrameType, number: int) -> list[int]:
        start = id(frame)
        if self.pointer_offset >= 0:
            start = ctypes.c_void_p.from_address(start + self.pointer_offset).value or 0
        return [word & ~_TAGS for word in (ctypes.c_size_t * number).from_address(start + self.offset)]


@cache
def _layout() -> _Layout | None:
    """Try where the words of a frame are; None: not where they are in the versions of CPython that are known."""
    if sys.implementation.name != "cpython" or sys.version_info >= (3, 15):
        return None  # 3.15 keeps a number where older versions keep the iterator of a list
    pointer_offset = -1 if sys.version_info < (3, 11) else object.__basicsize__ + _WORD
    trial = [itertools.repeat(None) for _ in range(3)]

    def nest(first: Any, second: Any, third: Any) -> _Layout | None:
        for _ in first:
            for _ in second:
                for _ in third:
                    return look(sys._getframe())
        return None

    def look(frame: FrameType) -> _Layout | None:
        wanted = [id(one) for one in trial]
        for offset in range(0, _MOST_WORDS * _WORD, _WORD):
            words = _Layout(pointer_offset, offset).words(frame, len(wanted))
            if words == wanted:
                layout = _Layout(pointer_offset, offset)
                begin = _num_variables(frame.f_code)
                return layout if layout.words(frame, begin + len(wanted))[begin:] == wanted else None
        return None

    return nest(*trial)
