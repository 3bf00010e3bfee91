"""Meets as Horovod's gloo does (horovod/common/gloo/http_store.cc, gloo/rendezvous/context.cc), and adds numbers up.

What a rank is, where the store is and which interface to use is read from the same variables. In each of three scopes,
all ranks, those of a node, and those with the same local rank, a rank puts its address, asks for those of the others
until they are there, connects to each, waits for all, and deletes its own.
"""

import fcntl
import os
import socket
import struct
import time

SECONDS = 60.0
PAUSE = 0.01  # as HTTPStore::wait
TERMS = struct.Struct("<q")
_contexts = {}


class _Context:
    def __init__(self, scope, rank, size):
        self.links = []
        listener = socket.create_server((_own_address(), 0))
        _ask("PUT", scope, f"rank_{rank}", socket.gethostname().encode())
        _ask("PUT", scope, str(rank), "{}:{}".format(*listener.getsockname()).encode())
        for other in range(size):
            if other < rank:
                host, _, port = _wait(scope, str(other)).decode().rpartition(":")
                self.links.append(socket.create_connection((host, int(port)), timeout=SECONDS))
            elif other > rank:
                listener.settimeout(SECONDS)
                self.links.append(listener.accept()[0])
        listener.close()
        self.add_up(0)  # the barrier before Finalize
        _ask("DELETE", scope, str(rank))

    def add_up(self, number):
        for link in self.links:
            link.sendall(TERMS.pack(number))
        return number + sum(TERMS.unpack(link.recv(TERMS.size, socket.MSG_WAITALL))[0] for link in self.links)


def init():
    assert os.environ["HOROVOD_CONTROLLER"] == "gloo"
    own = os.environ["HOROVOD_HOSTNAME"]
    _contexts["global"] = _Context("global", rank(), size())
    _contexts["local"] = _Context(f"local_{own}", local_rank(), _number("LOCAL_SIZE"))
    _contexts["cross"] = _Context(f"cross_{local_rank()}", _number("CROSS_RANK"), _number("CROSS_SIZE"))


def shutdown():
    while _contexts:
        for link in _contexts.popitem()[1].links:
            link.close()


def rank():
    return _number("RANK")


def size():
    return _number("SIZE")


def local_rank():
    return _number("LOCAL_RANK")


def allreduce(number, among="global"):
    """Return the sum; Horovod's default is the mean."""
    return _contexts[among].add_up(number)


def _number(name):
    return int(os.environ[f"HOROVOD_{name}"])


def _own_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        name = os.environ["HOROVOD_GLOO_IFACE"].encode()
        return socket.inet_ntoa(fcntl.ioctl(probe, 0x8915, struct.pack("256s", name))[20:24])  # SIOCGIFADDR


def _wait(scope, key):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        status, value = _ask("GET", scope, key)
        if status == 200:
            return value
        assert status == 404
        time.sleep(PAUSE)
    raise TimeoutError(f"/{scope}/{key}")


def _ask(method, scope, key, value=b""):
    """Ask in the words of third_party/HTTPRequest: two fields, and a connection for each request."""
    address, number = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    url = f"http://{address}:{number}/{scope}/{key}"  # as HTTPStore's url_prefix_, which HTTPRequest takes apart
    domain, slash, path = url[len("http://") :].partition("/")
    host, _, port = domain.partition(":")
    head = f"{method} {slash}{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(value)}\r\n\r\n"
    with socket.create_connection((host, int(port or "80")), timeout=SECONDS) as sock:
        sock.sendall(head.encode() + value)
        heard = b""
        while b"\r\n\r\n" not in heard:
            heard += sock.recv(4096)
        head, _, body = heard.partition(b"\r\n\r\n")
        first, *fields = head.decode().split("\r\n")
        length = next(int(field.partition(":")[2]) for field in fields if field.startswith("Content-Length"))
        while len(body) < length:
            body += sock.recv(4096)
    return int(first.split(" ")[1]), body
