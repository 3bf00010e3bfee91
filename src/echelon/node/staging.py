"""`python3 node.pyz stage DIRECTORY [INDEX]`: bring files to this node's own disk, and remove them at the end.

The files come as one stream of tar. A node hands each piece on to at most two others before it unpacks it, so the
shared disk is read once, whatever the number of nodes. The process lives as long as the run, or as the node's pool.
"""

import errno
import fcntl
import json
import os
import queue
import select
import signal
import socket
import sys
import tarfile
import threading
import time
from contextlib import suppress
from typing import IO, Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from ..environment.agent_place import agent_task
from . import pool_place, private
from .channel import Channel, Closed, Message
from .connect import ConnectError, connect
from .secret import NONCE_BYTES, PROOF_BYTES, nonce, proof, proves
from .staged_copy import KEEPER, StagedCopy, clear, clear_dead, copy_shards, digest_of, new_digest, remove_path
from .survey.visit import facts

ORDER = "stage.json"
PIECE_BYTES = 1 << 20
_ZEROS = bytes(PIECE_BYTES)
NUM_WAITING_PIECES = 16
CONNECT_SECONDS = 30.0
STALL_SECONDS = 600.0
ORPHAN_SECONDS = 3.0  # what ranks have to end after the command was killed, and a little more


class StageOrder(NamedTuple):
    """The content of stage.json."""

    addresses: List[Tuple[str, int]]  # addresses of the process that reads the shared disk
    folder: str  # of all that is staged on a node
    word: str  # of the run
    links: Dict[str, str]  # the folders inside, one for each source; where nodes shall see it, or ""


def write(directory: str, order: StageOrder, secret: bytes) -> None:
    """Write the order and the secret, readable only by the user."""
    private.write(os.path.join(directory, ORDER), json.dumps(order._asdict()).encode())
    private.write_secret(directory, secret)


def read(directory: str) -> Tuple[StageOrder, bytes]:
    with open(os.path.join(directory, ORDER), encoding="utf-8") as file:
        fields = json.load(file)
    fields["addresses"] = [(host, port) for host, port in fields["addresses"]]
    return StageOrder(**fields), private.read_secret(directory)


# The stream


def greet(sock: socket.socket, secret: bytes, ours: str, theirs: str) -> bool:
    """Prove to the other end that this process holds the run's secret; say whether the other end has proved it too."""
    own = nonce()
    sock.sendall(own.encode())
    challenge = _exactly(sock, 2 * NONCE_BYTES)
    sock.sendall(proof(secret, ours, challenge + own).encode())
    return proves(secret, theirs, own + challenge, _exactly(sock, 2 * PROOF_BYTES))


def _exactly(sock: socket.socket, size: int) -> str:
    heard = b""
    while len(heard) < size:
        piece = sock.recv(size - len(heard))
        if not piece:
            raise ConnectionError("the other end has closed the connection")
        heard += piece
    return heard.decode("ascii", "replace")


def call(addresses: Iterable[str], port: int, secret: bytes) -> socket.socket:
    """Return a connection to a node that waits for a stream; raise OSError."""
    why: OSError = ConnectionError("it has no address")
    for address in addresses:
        try:
            sock = socket.create_connection((address, port), timeout=CONNECT_SECONDS)
            if greet(sock, secret, "parent", "child"):
                sock.settimeout(STALL_SECONDS)
                return sock
            why = ConnectionError("another program answers there")
            sock.close()
        except OSError as error:
            why = error
    raise why


class _Pieces:
    """A file for the unpacking thread: what has come and is not yet unpacked."""

    def __init__(self) -> None:
        self.queue: "queue.Queue[bytes]" = queue.Queue(NUM_WAITING_PIECES)
        self._rest = b""
        self._is_over = False

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and not self._is_over:
            piece = self.queue.get()
            self._is_over = not piece
            self._rest += piece
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece

    def drain(self) -> None:
        while not self._is_over:
            self._is_over = not self.queue.get()


class Reception:
    """A stream that comes in, goes on to other nodes, and is unpacked."""

    def __init__(self, copy: Optional[StagedCopy], children: List[socket.socket]) -> None:
        self._copy = copy
        self._children = children
        self._pieces = _Pieces()
        self.digest = new_digest()
        self.why_not = ""
        self.manifest = ""

    def run(self, sock: socket.socket) -> None:
        """Receive all; what goes wrong on this node does not keep the others from getting theirs."""
        thread = threading.Thread(target=self._unpack)
        thread.start()
        try:
            while True:
                piece = sock.recv(PIECE_BYTES)
                for child in list(self._children):
                    try:
                        child.sendall(piece) if piece else child.close()
                    except OSError:
                        self._children.remove(child)  # it tells by itself that it lacks something
                self._pieces.queue.put(piece)
                if not piece:
                    break
                self.digest.update(piece)
        except OSError as error:
            self.why_not = "the stream broke off: %s" % error
            self._pieces.queue.put(b"")
        thread.join()

    def _unpack(self) -> None:
        try:
            if self._copy is not None:
                with tarfile.open(fileobj=self._pieces, mode="r|", bufsize=PIECE_BYTES) as archive:  # type: ignore[call-overload]
                    self._write(archive, self._copy.files)
        except (OSError, tarfile.TarError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self.why_not = self.why_not or why
        self._pieces.drain()

    def _write(self, archive: tarfile.TarFile, folder: str) -> None:
        """Write the members; the first is the manifest. Folders become read-only at the end."""
        folders = []
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if not self.manifest and content is not None:
                self.manifest = content.read().decode("utf-8", "surrogateescape")
                continue
            path = os.path.join(folder, member.name)
            if member.isdir():
                os.makedirs(path, mode=0o700, exist_ok=True)
                folders.append((path, member.mode))
                continue
            private.remove(path)
            if content is None:
                os.symlink(member.linkname, path)
                continue
            self._write_file(path, content, member)
        for path, mode in reversed(folders):
            os.chmod(path, mode)

    def _write_file(self, path: str, content: IO[bytes], member: tarfile.TarInfo) -> None:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
            for piece in iter(lambda: content.read(PIECE_BYTES), b""):
                if piece == _ZEROS[: len(piece)]:
                    file.seek(len(piece), os.SEEK_CUR)  # a hole stays one
                elif file.write(piece) < len(piece):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            file.truncate(member.size)
            os.fchmod(file.fileno(), member.mode)
        os.utime(path, (member.mtime, member.mtime))


# The process


class Stager:
    """One node's part: it says what it has, receives what it lacks, and keeps it as long as it is used."""

    def __init__(self, order: StageOrder, secret: bytes, channel: Channel) -> None:
        self._order = order
        self._secret = secret
        self._channel = channel
        self._copies: Dict[str, StagedCopy] = {}
        self._receptions: Dict[str, Reception] = {}
        self._is_told_to_end = False
        self._listener = socket.create_server(("", 0), backlog=8)

    def run(self) -> None:
        """Obey until the run has ended."""
        try:
            self._stand()
            while True:
                writing = [self._channel] if self._channel.has_unsent else []
                select.select([self._channel], writing, [])
                self._channel.flush()
                for message in self._channel.receive():
                    getattr(self, "_" + message["kind"])(message)
        except Closed:
            if not self._is_told_to_end:
                time.sleep(ORPHAN_SECONDS)  # ranks may still save

    def _stand(self) -> None:
        clear_dead(self._order.folder, self._order.links)
        items: Dict[str, Dict[str, Any]] = {}
        for key, link in self._order.links.items():
            try:
                copy = self._copies[key] = StagedCopy(os.path.join(self._order.folder, key), self._order.word)
                copy.use()  # from now on no other run changes or removes it
                items[key] = {"digest": digest_of(copy.manifest), "free_bytes": copy.free_bytes}
                items[key]["why_not"] = copy.why_not_here() or copy.why_not_at(link)
            except OSError as error:
                items[key] = {"why_not": "%s: %s" % (self._order.folder, error.strerror)}
        self._channel.send("standing", port=self._listener.getsockname()[1], items=items)

    def _tell(self, message: Message) -> None:
        """Send the manifest of what is here, for only what differs to be sent."""
        self._channel.send("manifest", key=message["key"], manifest=self._copies[message["key"]].manifest)

    def _receive(self, message: Message) -> None:
        copy, key = self._copies[message["key"]], message["key"]
        why_not, owned = "", None
        try:
            if copy.take(keeps=message["keeps"]) == "own":
                owned = copy
                for name in message["removed"]:
                    remove_path(os.path.join(copy.files, name))
        except OSError as error:
            why_not = error.strerror or str(error)
        children = []
        for addresses, port in message["children"]:
            with suppress(OSError):  # that node tells by itself that nothing has come
                children.append(call(addresses, port, self._secret))
        reception = self._receptions[key] = Reception(None if why_not else owned, children)
        reception.why_not = why_not
        self._channel.send("ready", key=key)
        self._channel.flush()
        try:
            with self._caller() as sock:
                reception.run(sock)
        except OSError as error:
            reception.why_not = reception.why_not or "nothing came: %s" % error
        for child in children:
            child.close()

    def _caller(self) -> socket.socket:
        while True:
            ready, _, _ = select.select([self._listener.fileno(), self._channel.fileno()], [], [], STALL_SECONDS)
            if self._listener.fileno() not in ready:
                raise ConnectionError("no node has called")
            sock, _ = self._listener.accept()
            sock.settimeout(STALL_SECONDS)
            with suppress(OSError):
                if greet(sock, self._secret, "child", "parent"):
                    return sock
            sock.close()

    def _copy(self, message: Message) -> None:
        """Copy the files that this node's ranks read from the shared disk; the others are links to it."""
        copy = self._copies[message["key"]]
        reception = self._receptions[message["key"]] = Reception(None, [])
        try:
            if copy.take(keeps=False) == "own":
                copy_shards(message["source"], os.path.join(copy.files, message["name"]), message["entries"])
                reception.manifest = message["manifest"]
        except OSError as error:
            reception.why_not = "%s: %s" % (error.filename or "", error.strerror)

    def _finish(self, message: Message) -> None:
        """Compare what has come with what was sent, and let the run use it."""
        key = message["key"]
        copy, reception = self._copies[key], self._receptions.pop(key, None)
        why_not = reception.why_not if reception is not None else ""
        if reception is not None and message["digest"] and not why_not:
            why_not = "" if reception.digest.hexdigest() == message["digest"] else "the stream broke off"
        try:
            if reception is not None and reception.manifest and not why_not:
                copy.finish(reception.manifest)
            if not why_not:
                copy.use()
                if digest_of(copy.manifest) != message["manifest"]:
                    raise OSError(116, "another run has changed or removed it meanwhile", copy.path)
                copy.show(message["name"], self._order.links[key])
        except OSError as error:
            why_not = "%s: %s" % (error.filename2 or error.filename or copy.path, error.strerror)
        self._channel.send("staged", key=key, why_not=why_not)

    def _end(self, _message: Message) -> None:
        """Tell whether what is here stays for the next run, and end."""
        self._is_told_to_end = True
        self._channel.send("left", stays=_pool_lock(fcntl.LOCK_SH | fcntl.LOCK_NB) < 0)
        self._channel.flush()
        raise Closed("the run has ended")

    def leave(self) -> None:
        """Remove what was staged; where this node has a pool, at the end of the pool."""
        self._channel.close()
        self._listener.close()
        for copy in self._copies.values():
            copy.release()
        if self._copies and _is_last(os.path.join(self._order.folder, KEEPER)):
            clear(self._order.folder)


def _pool_lock(how: int) -> int:
    """Lock the folder of this node's pool, which locks it as long as it lives; -1 if that fails, 0 without a pool."""
    try:
        descriptor = os.open(pool_place.folder(os.environ), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return -1
    finally:
        os.close(descriptor)
    return 0


def _is_last(keeper: str) -> bool:
    """Wait for the end of this node's pool, if it has one; say whether no other process does so already."""
    if _pool_lock(fcntl.LOCK_SH | fcntl.LOCK_NB) == 0:
        return True
    lock = os.open(keeper, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    with suppress(SystemExit):  # the job ends
        _pool_lock(fcntl.LOCK_SH)
    return True


def main(directory: str, index: int, environ: Mapping[str, str]) -> int:
    """Stage what the run asks for, until the run closes the connection."""
    order, secret = read(directory)
    task = agent_task(environ)
    place = task.agent_index if task is not None and index < 0 else max(index, 0)
    node = (task.node if task is not None else "") or socket.gethostname()
    try:
        channel = connect(order.addresses, secret, facts(place, node), seconds=CONNECT_SECONDS)
    except ConnectError as error:
        sys.stderr.write("echelon: staging on %s: %s\n" % (node, error))
        return 1
    stager = Stager(order, secret, channel)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        stager.run()
    finally:
        stager.leave()
    return 0


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
