"""Prove to the other end of a connection that this process holds the run's secret; give a rank its attempt's key.

Give a rank the key of its attempt: in an unnamed file, by an inherited descriptor.

The environment holds only the numbers of the descriptor and of the file. They tell whether the descriptor is still
that file: a program that the script starts inherits the variable, but not the descriptor.
"""

import json
import os
from contextlib import suppress
from typing import Dict, MutableMapping, NamedTuple, Optional

from ..environment import digits

try:
    from _blake2 import blake2b  # hashlib and hmac would load OpenSSL: 4 MB in every agent
except ImportError:  # this Python was built without blake2
    from hashlib import blake2b

NONCE_BYTES = 16
PROOF_BYTES = 32


def nonce() -> str:
    """Return a fresh random challenge."""
    return os.urandom(NONCE_BYTES).hex()


def proof(secret: bytes, role: str, challenge: str) -> str:
    """Return the answer to a challenge; only a holder of the run's secret (at most 64 bytes) can compute it."""
    return digest(secret, (role + ":" + challenge).encode("utf-8", "surrogatepass")).hex()


def proves(secret: bytes, role: str, challenge: str, answer: object) -> bool:
    if not isinstance(answer, str):
        return False
    return is_digest(proof(secret, role, challenge).encode(), answer.encode("utf-8", "surrogatepass"))


def is_digest(wanted: bytes, answer: bytes) -> bool:
    """Compare two digests in constant time: compare their digests under a random key."""
    blind = os.urandom(NONCE_BYTES)
    return digest(blind, wanted) == digest(blind, answer)


def digest(key: bytes, text: bytes) -> bytes:
    """Return a keyed digest of PROOF_BYTES; the key has at most 64 bytes."""
    return bytes(blake2b(text, key=key, digest_size=PROOF_BYTES).digest())


VARIABLE = "ECHELON_KEY_FD"
_LARGEST_BYTES = 4096


class Entrance(NamedTuple):
    """The address at which the ranks of an attempt meet, and the key that they prove there."""

    key: bytes
    host: str
    port: int


def write(entrance: Entrance) -> int:
    """Return a descriptor of a new unnamed file; children inherit it only if that is requested."""
    content = json.dumps({**entrance._asdict(), "key": entrance.key.hex()}).encode()
    descriptor = new_file("echelon-key")
    os.write(descriptor, content)
    return descriptor


def new_file(name: str) -> int:
    """Return a descriptor of a new unnamed file; the kernel lists it under this name."""
    if hasattr(os, "memfd_create"):  # missing in a Python that was built for an old C library
        return os.memfd_create(name)
    import tempfile  # half a megabyte that most agents do not need

    descriptor, path = tempfile.mkstemp()  # created with mode 0600, owned by the user
    os.unlink(path)
    return descriptor


def variable(descriptor: int) -> Dict[str, str]:
    """Return the variable that tells a rank its inherited descriptor."""
    return {VARIABLE: "%d:%d" % (descriptor, os.fstat(descriptor).st_ino)}


def take(environ: MutableMapping[str, str]) -> Optional[Entrance]:
    """Read the inherited file and close it; None if there is none."""
    descriptor = _find(environ.pop(VARIABLE, ""))
    if descriptor is None:
        return None
    fields = json.loads(os.pread(descriptor, _LARGEST_BYTES, 0))
    os.close(descriptor)
    return Entrance(bytes.fromhex(fields["key"]), fields["host"], fields["port"])


def _find(text: str) -> Optional[int]:
    number, _, file = text.partition(":")
    if not (digits.is_number(number) and digits.is_number(file)):
        return None
    with suppress(OSError, ValueError, OverflowError):  # the descriptor is already closed
        status = os.fstat(int(number))
        if (status.st_ino, status.st_nlink, status.st_uid) == (int(file), 0, os.geteuid()):
            return int(number)
    return None
