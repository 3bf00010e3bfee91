"""Read the network of this node: interfaces, its own name, and libraries for the fast network."""

import os
import re
import socket
import struct
from typing import List, Mapping

from ...hardware import files
from ...topology.node import Node
from .nouns import Interface, NodeNetwork

# libnccl-net.so, librccl-net.so, libnccl-net-ofi.so, librccl-net.so.1
_PLUGIN = re.compile(rb"lib[nr]ccl-net[\w.-]*\.so[\w.]*")
_CACHE = "etc/ld.so.cache"
_MODULES = ("nvidia_peermem", "nv_peer_mem", "gdrdrv", "ib_core", "amdgpu", "cxi_core", "cxi_user", "efa")
_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def read(root: str, node: Node, environ: Mapping[str, str]) -> NodeNetwork:
    """Return the network; a name that does not resolve has no addresses."""
    is_this_node = os.path.realpath(root) == "/"
    name = socket.gethostname() if is_this_node else ""
    loaded = {line.split()[0] for line in files.text(os.path.join(root, "proc/modules")).splitlines() if line.split()}
    return NodeNetwork(
        interfaces=tuple(_interfaces(root, node, is_this_node)),
        hostname=name,
        addresses=tuple(addresses(name)) if is_this_node else (),
        plugins=tuple(plugins(root, environ.get("LD_LIBRARY_PATH", ""))),
        modules=tuple(module for module in _MODULES if module in loaded),
        boot_id=files.text(os.path.join(root, "proc/sys/kernel/random/boot_id")),
    )


def addresses(name: str) -> List[str]:
    """Return the addresses of a name as this node resolves it; empty if it does not."""
    try:
        infos = socket.getaddrinfo(name, None, socket.AF_UNSPEC, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


def plugins(root: str, search_path: str) -> List[str]:
    """Return the network plugins of the collectives, in the loader's search order."""
    paths = []
    for folder in [part for part in search_path.split(":") if part]:
        names = files.names(os.path.join(root, folder.lstrip("/")))
        paths += [os.path.join(folder, name) for name in names if _PLUGIN.fullmatch(os.fsencode(name))]
    try:
        with open(os.path.join(root, _CACHE), "rb") as file:
            known = file.read()
    except OSError:
        known = b""
    return list(dict.fromkeys([*paths, *(os.fsdecode(name) for name in _PLUGIN.findall(known))]))


def _interfaces(root: str, node: Node, is_this_node: bool) -> List[Interface]:
    interfaces = []
    known = {nic.interface or nic.name: nic for nic in node.nics}
    folder = os.path.join(root, "sys/class/net")
    for name in files.names(folder):
        nic = known.pop(name, None)
        is_up = files.text(os.path.join(folder, name, "operstate")) in ("up", "unknown")
        speed = max(0, files.number(files.text(os.path.join(folder, name, "speed")), 0)) * 10**6
        interfaces.append(
            Interface(
                name=name,
                kind=nic.kind if nic else "other",
                is_up=nic.is_up if nic else is_up,
                bits_per_second=nic.bits_per_second if nic else speed,
                address=_address(name) if is_this_node else "",
            )
        )
    # a card of the fast network without an IP interface
    interfaces += [Interface(name, nic.kind, nic.is_up, nic.bits_per_second, "") for name, nic in known.items()]
    return interfaces


def _address(name: str) -> str:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", os.fsencode(name)[:15]))
        except OSError:
            return ""  # the interface has no address
    return socket.inet_ntoa(answer[20:24])
