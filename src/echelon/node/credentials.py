"""How a rank gets the key of its attempt: in a file without a name, by an inherited descriptor.

The environment has the descriptor's number alone. It and the file's own number tell whether the descriptor is still
that file: a program that the script starts inherits the variable, and not the descriptor.
"""

import json
import os
from contextlib import suppress
from typing import Dict, MutableMapping, NamedTuple, Optional

from ..environment import digits

VARIABLE = "ECHELON_KEY_FD"
_LARGEST_BYTES = 4096


class Entrance(NamedTuple):
    """Where the ranks of an attempt meet, and what they prove there."""

    key: bytes
    host: str
    port: int


def write(entrance: Entrance) -> int:
    """Return a descriptor of a new file without a name; it is inherited only where that is asked for."""
    content = json.dumps({**entrance._asdict(), "key": entrance.key.hex()}).encode()
    descriptor = _new_file()
    os.write(descriptor, content)
    return descriptor


def _new_file() -> int:
    if hasattr(os, "memfd_create"):  # a Python that was built for an old C library has it not
        return os.memfd_create("echelon-key")
    import tempfile  # half a megabyte that few need

    descriptor, path = tempfile.mkstemp()  # mode 0600, and the user's own
    os.unlink(path)
    return descriptor


def variable(descriptor: int) -> Dict[str, str]:
    """Return what tells a rank which descriptor it has inherited."""
    return {VARIABLE: "%d:%d" % (descriptor, os.fstat(descriptor).st_ino)}


def take(environ: MutableMapping[str, str]) -> Optional[Entrance]:
    """Read what was inherited and close it; None where there is nothing."""
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
    with suppress(OSError, ValueError, OverflowError):  # it is closed by now
        status = os.fstat(int(number))
        if (status.st_ino, status.st_nlink, status.st_uid) == (int(file), 0, os.geteuid()):
            return int(number)
    return None
