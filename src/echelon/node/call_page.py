"""The part of a pulse's page with the last collectives of a rank: who reads it learns which rank left which.

The rank packs each call into a slot before it begins, and writes its state when it ends; the page outlives the rank.
"""

import struct
from typing import Any, Dict, List, Sequence

CALLS_AT = 8192
NUM_CALLS = 16
CALL_BYTES = 256
CALL = struct.Struct("=QQBxxxI32s24s64s96s")
"""The place of a call in the order of all calls from 1 on (0: none), its number among those of its group (0: unknown),
state, line, kind, group, file and tensor.
"""
NUMBER_AT, STATE_AT = 8, 16
STATE = struct.Struct("=QB")
"""A call's number and state, from NUMBER_AT on."""
RUNNING, RETURNED, FAILED, WAITS = range(1, 5)
"""WAITS: a pass backward has computed all gradients, and waits for those of other ranks."""
LOOPS_AT = CALLS_AT + NUM_CALLS * CALL_BYTES
NUM_LOOPS = 4
LOOP_BYTES = 128
BATCHES_AT, LOOP_ENDED_AT = 8, 20
LOOP = struct.Struct("=QQIBxH64s")
"""The place of a loop over a loader in the order of all loops, its batches so far, line, whether it has ended, how many
loops of this line there were, and file.
"""
NOTE_AT = LOOPS_AT + NUM_LOOPS * LOOP_BYTES
NOTE_BYTES = 1024
"""What an error does not tell: the names of parameters without a gradient, or how a worker of a loader ended."""
END = NOTE_AT + NOTE_BYTES


def read(page: bytes, most_calls: int = NUM_CALLS) -> Dict[str, Any]:
    """Return the last calls and loops in their order, and the note, as a message; empty without any."""
    calls = _slots(page, CALLS_AT, NUM_CALLS, CALL_BYTES, CALL)[-most_calls:]
    loops = _slots(page, LOOPS_AT, NUM_LOOPS, LOOP_BYTES, LOOP)
    note = _text(page[NOTE_AT:END])
    return {"calls": calls, "loops": loops, "note": note} if calls or loops or note else {}


def _slots(page: bytes, at: int, number: int, size: int, form: struct.Struct) -> List[Sequence[Any]]:
    slots = [form.unpack_from(page, at + place * size) for place in range(number)]
    rows = sorted(slot for slot in slots if slot[0])
    return [[_text(value) if isinstance(value, bytes) else value for value in row] for row in rows]


def _text(content: bytes) -> str:
    return content.partition(b"\0")[0].decode("utf-8", "replace")
