"""Compare the names that ranks give to the same file: equal, or different by a time, a process id or a host name."""

import os
import re
import socket
from typing import Dict, NamedTuple

_DIGITS = re.compile(r"\d+")
_HEXADECIMAL = re.compile(r"(?=[a-f-]*\d)(?=[\d-]*[a-f])[0-9a-f][0-9a-f-]{6,}[0-9a-f]", re.IGNORECASE)
_TIME = re.compile(r"(?<!\d)20\d\d|\d\d\D?\d\d\D\d\d|\d{9}")  # 2026…, 21_16-04-05, seconds since 1970
Aliases = Dict[str, str]


class Place(NamedTuple):
    """The process id and the host name, which a process may put into a name."""

    pid: str
    host: str


def here() -> Place:
    """Return this process's place."""
    return Place(str(os.getpid()), socket.gethostname())


def are_alike(own: str, theirs: str, own_place: Place, their_place: Place) -> bool:
    """Say whether two paths may name the same file of a script that one rank runs a moment later than another."""
    if own == theirs:
        return True
    parts, their_parts = own.split(os.sep), theirs.split(os.sep)
    return len(parts) == len(their_parts) and all(
        one == other or _shape(one, own_place) == _shape(other, their_place)
        for one, other in zip(parts, their_parts)  # noqa: B905
    )


def _shape(name: str, place: Place) -> str:
    """Return a name without the parts that depend on the process and the time."""
    name = name.replace(place.host, "<host>").replace(place.pid, "<pid>")
    name = _HEXADECIMAL.sub("<number>", name)
    return _DIGITS.sub("<time>", name) if _TIME.search(name) else name


def note(aliases: Aliases, own: str, theirs: str) -> None:
    """Remember rank 0's name for this rank's name of a file, or for the folder if only the folder differs."""
    while own != theirs:
        (folder, name), (their_folder, their_name) = os.path.split(own), os.path.split(theirs)
        if name != their_name:
            aliases[own] = theirs
            if folder == their_folder:
                return
        own, theirs = folder, their_folder


def translate(aliases: Aliases, path: str) -> str:
    """Return rank 0's name of a path."""
    part = path
    while part not in aliases:
        folder = os.path.dirname(part)
        if folder == part:
            return path
        part = folder
    return aliases[part] + path[len(part) :]
