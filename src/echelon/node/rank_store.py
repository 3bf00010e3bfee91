"""The store by which ranks form echelon's own groups, in the first agent's loop; callers must hold the attempt's key.

The store sends a challenge of NONCE_BYTES; a caller answers with its own challenge and its proof, and gets the store's
proof. Then each request gets an answer: four bytes with the length, one letter, and parts, each preceded by four bytes
with its length. Requests are those of torch.distributed.Store; a request waits here until its keys exist.
"""

import os
import selectors
import struct
from typing import Callable, Dict, List, NamedTuple

from .secret import NONCE_BYTES, PROOF_BYTES, digest, is_digest
from .server import Caller, Server

LENGTH = struct.Struct("<I")
LARGEST_REQUEST_BYTES = 1 << 26
READ_AHEAD_BYTES = 1 << 16  # neighbouring keys, which a rank asks for next: gloo asks for 0, 1, 2 …
FINE = b"+"


class _Wait(NamedTuple):
    """A request that waits for missing keys."""

    caller: Caller
    keys: List[bytes]
    answer: Callable[[List[bytes]], List[bytes]]


class RankStore(Server):
    """Keys and values for ranks that have proved that they hold the key."""

    def __init__(self, selector: selectors.BaseSelector, address: str, key: bytes) -> None:
        super().__init__(selector, address)
        self._key = key
        self._kept: Dict[bytes, bytes] = {}
        self._challenges: Dict[Caller, bytes] = {}
        self._waits: Dict[bytes, List[_Wait]] = {}  # each under one of its missing keys

    def greet(self, caller: Caller) -> None:
        challenge = os.urandom(NONCE_BYTES)
        self._challenges[caller] = challenge
        self.say(caller, challenge)

    def drop(self, caller: Caller) -> None:
        self._challenges.pop(caller, None)
        super().drop(caller)

    def hear(self, caller: Caller) -> None:
        """Read the proof, then requests."""
        if caller in self._challenges and not self._is_proven(caller):
            return
        heard, start = caller.heard, 0
        while len(heard) >= start + LENGTH.size:
            size = LENGTH.unpack_from(heard, start)[0]
            if size > LARGEST_REQUEST_BYTES:
                raise ValueError("a request of %d bytes" % size)
            end = start + LENGTH.size + size
            if len(heard) < end:
                break
            self._obey(caller, bytes(heard[start + LENGTH.size : end]))
            start = end
        del heard[:start]

    def _is_proven(self, caller: Caller) -> bool:
        if len(caller.heard) < NONCE_BYTES + PROOF_BYTES:
            return False
        theirs = bytes(caller.heard[:NONCE_BYTES])
        answer = bytes(caller.heard[NONCE_BYTES : NONCE_BYTES + PROOF_BYTES])
        del caller.heard[: NONCE_BYTES + PROOF_BYTES]
        challenge = self._challenges[caller]
        if not is_digest(rank_proof(self._key, challenge, theirs), answer):
            raise ValueError("a stranger")
        del self._challenges[caller]
        self.trust(caller)
        self.say(caller, store_proof(self._key, theirs, challenge))
        return True

    def _obey(self, caller: Caller, request: bytes) -> None:
        word, parts = request[:1], unpacked(request[1:])
        if word == b"W":  # wait for one key and return its value, or wait for many keys
            answer = self._with_neighbours if len(parts) == 1 else lambda _: []
            self._answer_when_there(_Wait(caller, parts, answer))
        elif word == b"M":
            self._answer_when_there(_Wait(caller, parts, lambda keys: [self._kept[key] for key in keys]))
        else:
            self._answer(caller, [_ACTS[word](self, *parts)])

    def _answer(self, caller: Caller, parts: List[bytes]) -> None:
        self.say(caller, packed(FINE, parts))

    def _answer_when_there(self, wait: _Wait) -> None:
        missing = next((key for key in wait.keys if key not in self._kept), None)
        if missing is None:
            self._answer(wait.caller, wait.answer(wait.keys))
        else:
            self._waits.setdefault(missing, []).append(wait)

    def _with_neighbours(self, keys: List[bytes]) -> List[bytes]:
        """Return the value, then the keys and values of keys with the next numbers."""
        parts = [self._kept[keys[0]]]
        stem = keys[0].rstrip(b"0123456789")
        digits = keys[0][len(stem) :]
        if not 0 < len(digits) < 10:
            return parts
        size, number = len(parts[0]), int(digits)
        while size < READ_AHEAD_BYTES:
            number += 1
            key = stem + b"%d" % number
            if key not in self._kept:
                break
            parts += [key, self._kept[key]]
            size += len(parts[-1])
        return parts

    def _put(self, key: bytes, value: bytes) -> None:
        self._kept[key] = value
        for wait in self._waits.pop(key, ()):
            if wait.caller.is_open:
                self._answer_when_there(wait)

    def _set(self, *pairs: bytes) -> bytes:
        for key, value in zip(pairs[::2], pairs[1::2]):  # noqa: B905
            self._put(key, value)
        return b""

    def _append(self, key: bytes, value: bytes) -> bytes:
        self._put(key, self._kept.get(key, b"") + value)
        return b""

    def _add(self, key: bytes, amount: bytes) -> bytes:
        total = b"%d" % (int(self._kept.get(key, b"0")) + int(amount))
        self._put(key, total)
        return total

    def _compare_set(self, key: bytes, expected: bytes, desired: bytes) -> bytes:
        """Set a value if the old value is as expected; a missing key counts as empty, as in torch's TCPStore."""
        if key not in self._kept and expected:
            return expected
        if self._kept.get(key, b"") == expected or key not in self._kept:
            self._put(key, desired)
        return self._kept[key]

    def _delete(self, key: bytes) -> bytes:
        return b"%d" % (self._kept.pop(key, None) is not None)

    def _check(self, *keys: bytes) -> bytes:
        return b"%d" % all(key in self._kept for key in keys)

    def _count(self) -> bytes:
        return b"%d" % len(self._kept)


_ACTS: Dict[bytes, Callable[..., bytes]] = {
    b"S": RankStore._set, b"P": RankStore._append, b"A": RankStore._add, b"C": RankStore._compare_set,
    b"D": RankStore._delete, b"K": RankStore._check, b"N": RankStore._count,
}  # fmt: skip


def rank_proof(key: bytes, challenge: bytes, own: bytes) -> bytes:
    """Return a rank's answer to the store's challenge: its own challenge and its proof."""
    return digest(key, b"rank of a store:" + challenge + own)


def store_proof(key: bytes, challenge: bytes, own: bytes) -> bytes:
    return digest(key, b"store of ranks:" + challenge + own)


def packed(word: bytes, parts: "List[bytes]") -> bytes:
    content = b"".join([word, *[LENGTH.pack(len(part)) + part for part in parts]])
    return LENGTH.pack(len(content)) + content


def unpacked(content: bytes) -> List[bytes]:
    """Decode the parts of a request or an answer; raise ValueError if they are incomplete."""
    parts, start = [], 0
    while start < len(content):
        try:
            size = LENGTH.unpack_from(content, start)[0]
        except struct.error:
            raise ValueError("not whole") from None
        start += LENGTH.size
        parts.append(content[start : start + size])
        if len(parts[-1]) < size:
            raise ValueError("not whole")
        start += size
    return parts
