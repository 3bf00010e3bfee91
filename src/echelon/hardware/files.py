"""Read small files of sysfs and procfs; a missing or malformed file reads as empty."""

from __future__ import annotations

import os


def text(path: str) -> str:
    """Return a file's text, stripped; empty if it cannot be read."""
    return text_or_none(path) or ""


def text_or_none(path: str) -> str | None:
    """Return a file's text, empty if reading is forbidden, None if there is no such file."""
    # os.open and os.read: a node with 256 threads has hundreds of these files, and open() takes three times as long.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return ""
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def number(value: str, missing: int = -1) -> int:
    """Return a decimal number, or `missing` for anything else."""
    digits = value[1:] if value.startswith("-") else value
    return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else missing


def fields(path: str) -> dict[str, str]:
    """Return the values of a file whose lines are `MemAvailable:   127863252 kB`, by their names."""
    pairs = (line.partition(":") for line in text(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def cgroups(controller: str, root: str = "/", process: str = "self") -> list[list[str]]:
    """Return the folders of a process's cgroups with a controller, each before those around it.

    0::/system.slice/slurmstepd.scope/job_7   (version 2)   or   4:cpu,cpuacct:/slurm/uid_1/job_7   (version 1)
    """
    chains = []
    for line in text(os.path.join(root, "proc", process, "cgroup")).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers or controller in controllers.split(","):
            mount = os.path.join(root, "sys/fs/cgroup", controller if controllers else "")
            # Inside of a container the path may not exist: its own cgroup is then the mount, at depth 0.
            words = [word for word in path.split("/") if word not in ("", "..")]
            chains.append([os.path.join(mount, *words[:depth]) for depth in range(len(words), -1, -1)])
    return chains


def names(folder: str) -> list[str]:
    """Return the sorted names in a folder; empty if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def numbers(folder: str, prefix: str = "") -> list[int]:
    """Return N for every PREFIXN in a folder, in order: cpu0, cpu1, …"""
    rests = [name[len(prefix) :] for name in names(folder) if name.startswith(prefix)]
    return sorted(int(rest) for rest in rests if rest.isascii() and rest.isdigit() and len(rest) < 10)


def is_address(name: str) -> bool:
    """Say whether a name is a PCI address: 0000:c1:00.0."""
    return name.count(":") == 2 and name[-2:-1] == "." and name.replace(":", "").replace(".", "").isalnum()


def normal(address: str) -> str:
    """Return an address with a domain of four digits, in lower case: NVML writes 00000000:C1:00.0."""
    domain, _, rest = address.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if rest else ""
    except ValueError:
        return ""
