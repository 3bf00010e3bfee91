"""The manifest of a checkpoint: what the folder must hold. It needs no torch."""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

from .errors import CheckpointError

NAME = "manifest.json"
FORMAT = 1
MOST_BYTES = 256 << 20
_PART_BYTES = 4 << 20
_FIELDS: dict[str, Any] = {
    "step": int, "serial": int, "time": (int, float), "num_ranks": int, "versions": dict, "files": dict, "about": dict,
}  # fmt: skip


class WrittenFile(NamedTuple):
    """The size and the checksum of a file as it was written.

    >>> WrittenFile(num_bytes=3, checksum=digest(b"abc")).num_bytes
    3
    """

    num_bytes: int
    checksum: str


class Manifest(NamedTuple):
    """What a checkpoint is, and which files it has."""

    step: int
    """The number of optimizer steps."""
    serial: int
    """A number that grows with each checkpoint of a folder: the newest has the largest, whatever its step."""
    time: float
    """Seconds since 1970 at which the checkpoint was written."""
    num_ranks: int
    versions: Mapping[str, str]
    """The versions of programs, such as {"torch": "2.13.0"}."""
    files: Mapping[str, WrittenFile]
    about: Mapping[str, Any]
    """Anything that the writer wants to find again, as JSON."""

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files.values())


class Damage(CheckpointError):
    """A folder is no whole checkpoint; the message is the reason, as a part of a sentence."""


def hasher() -> Any:
    """Return a new checksum to update; blake2b notices any alteration, which a CRC does not."""
    return hashlib.blake2b(digest_size=32)


def checksum_of(hashed: Any) -> str:
    return "blake2b:" + str(hashed.hexdigest())


def digest(content: bytes) -> str:
    """Return the checksum of some bytes.

    >>> digest(b"")[:16]
    'blake2b:0e5751c0'
    """
    hashed = hasher()
    hashed.update(content)
    return checksum_of(hashed)


def encode(manifest: Manifest) -> bytes:
    """Return the manifest as JSON, with a checksum of its own."""
    files = {name: {"bytes": one.num_bytes, "checksum": one.checksum} for name, one in sorted(manifest.files.items())}
    fields: dict[str, Any] = {"format": FORMAT, **manifest._asdict(), "files": files}
    fields["versions"], fields["about"] = dict(manifest.versions), dict(manifest.about)
    fields["checksum"] = digest(_canonical(fields))
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode(content: bytes) -> Manifest:
    """Return a manifest from JSON; raise Damage if it is another format's, or not as it was written."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        raise Damage(f"{NAME} is truncated, or is not JSON") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("format"), int):
        raise Damage(f"{NAME} is not that of a checkpoint")
    if fields["format"] > FORMAT:
        raise Damage(f"its format is {fields['format']:d}, and this version of echelon reads format {FORMAT}")
    checksum = fields.pop("checksum", None)
    if checksum != digest(_canonical(fields)):
        raise Damage(f"{NAME} was altered")
    if not all(isinstance(fields.get(name), kind) for name, kind in _FIELDS.items()):
        raise Damage("{} lacks one of {}".format(NAME, ", ".join(_FIELDS)))
    files = {name: WrittenFile(int(one["bytes"]), str(one["checksum"])) for name, one in fields["files"].items()}
    for name in files:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise Damage(f"{NAME} names the file {name!r} outside of its folder")
    return Manifest(**{**{name: fields[name] for name in _FIELDS}, "files": files})


def read(folder: str) -> Manifest:
    """Return the manifest of a folder; raise Damage with the reason if there is none that can be used."""
    try:
        with _opened(os.path.join(folder, NAME)) as file:
            content = file.read(MOST_BYTES)
    except FileNotFoundError:
        raise Damage(f"it has no {NAME}: echelon did not write it, or a copy of it was not finished") from None
    except OSError as error:
        raise Damage(f"{NAME} cannot be read: {error.strerror}") from None
    return decode(content)


def check_sizes(folder: str, manifest: Manifest) -> None:
    """Raise Damage if a file is missing or has another size; reads no file."""
    for name, written in manifest.files.items():
        try:
            status = os.stat(os.path.join(folder, name))
        except FileNotFoundError:
            raise Damage(f"{name} is missing") from None
        except OSError as error:
            raise Damage(f"{name} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(status.st_mode):
            raise Damage(f"{name} is not a regular file")
        if status.st_size != written.num_bytes:
            raise Damage(f"{name} has {status.st_size} bytes, but {written.num_bytes} were written")


def check_content(folder: str, manifest: Manifest) -> None:
    """Raise Damage if the content of a file is not what was written; reads all files."""
    for name, written in manifest.files.items():
        try:
            with _opened(os.path.join(folder, name)) as file:
                checksum = _checksum(file)
        except OSError as error:
            raise Damage(f"{name} cannot be read: {error.strerror}") from None
        if checksum != written.checksum:
            raise Damage(f"the content of {name} is not what was written")


def whole(folder: str, *, step: int | None = None, deep: bool = False) -> Manifest:
    """Return the manifest of a whole checkpoint, whose step must be `step`; raise Damage for any other folder."""
    manifest = read(folder)
    if step is not None and manifest.step != step:
        raise Damage(f"its folder has the name of step {step}, but it was written at step {manifest.step}")
    check_sizes(folder, manifest)
    if deep:
        check_content(folder, manifest)
    return manifest


def _opened(path: str) -> BinaryIO:
    """Open a file for reading, and never wait for the writer of a pipe."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0)


def _checksum(file: BinaryIO) -> str:
    hashed, part = hasher(), memoryview(bytearray(_PART_BYTES))
    while True:
        num_bytes = file.readinto(part)  # type: ignore[attr-defined]
        if not num_bytes:
            return checksum_of(hashed)
        hashed.update(part[:num_bytes])


def _canonical(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
