"""Read the quotas that apply to the folder of the checkpoints."""

import os
import re
import shutil
import subprocess
from typing import Iterator, List, Mapping, Sequence

from .folders import mounts, where
from .nouns import Quota, Quotas

TOOL_SECONDS = 4.0
_KIB = 1024
_NUMBERS = re.compile(r"(\d+)\*?$")  # a star marks an exceeded limit
_PROJECT = re.compile(r"\s*(\d+)\s+[-P]\s")


def read(root: str, environ: Mapping[str, str], *, checkpoints: str) -> Quotas:
    """Return the quotas of the owners that checkpoints count for; empty if no tool knows them."""
    if not checkpoints:
        return Quotas()
    there, mount, filesystem = where(checkpoints, mounts(root))
    path = environ.get("PATH", os.defpath)
    if filesystem == "lustre" and shutil.which("lfs", path=path):
        return Quotas(tuple(_of_lustre(there, mount, environ)))
    if filesystem != "lustre" and shutil.which("quota", path=path):
        return Quotas(tuple(_of_kernel(mount, environ)))
    return Quotas()


def _of_lustre(folder: str, mount: str, environ: Mapping[str, str]) -> Iterator[Quota]:
    owners = [("user", "-u", os.geteuid()), ("group", "-g", os.stat(folder).st_gid)]
    project = _PROJECT.match(_said(["lfs", "project", "-d", folder], environ))
    if project and int(project.group(1)):
        owners.append(("project", "-p", int(project.group(1))))
    for owner, option, number in owners:
        command = ["lfs", "quota", "-q", option, str(number), mount]
        words = _said(command, environ).split()
        # /scratch 8* 0 5 - 1 0 0 -   in kilobytes; a long name stands on its own line
        if mount in words:
            yield from _quota(owner, mount, words[words.index(mount) + 1 :], ["lfs", "quota", "-h", *command[3:]])


def _of_kernel(mount: str, environ: Mapping[str, str]) -> Iterator[Quota]:
    """Ask quota(1) for the kernel's own quotas and those of NFS."""
    command = ["quota", "-w", "-p", "-v", "-f", mount]
    lines = _said(command, environ).splitlines()
    # /dev/sda1 1234* 1000 2000 604800 10 0 0 0   below two lines of headings
    for line in lines[2:3]:
        yield from _quota("user", mount, line.split()[1:], ["quota", "-s", "-f", mount])


def _quota(owner: str, mount: str, words: Sequence[str], command: List[str]) -> Iterator[Quota]:
    numbers = [_NUMBERS.match(word) for word in (*words[:3], *words[4:7])]
    if len(words) < 8 or None in numbers:
        return
    used, soft, limit, files, soft_files, limit_files = [int(each.group(1)) for each in numbers if each]
    if soft or limit or soft_files or limit_files:
        yield Quota(
            owner=owner, mount=mount, used_bytes=used * _KIB, soft_bytes=soft * _KIB, limit_bytes=limit * _KIB,
            used_files=files, soft_files=soft_files, limit_files=limit_files, command=" ".join(command),
        )  # fmt: skip


def _said(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return a tool's output; empty if it fails. Raise TimeoutError if it hangs."""
    try:
        done = subprocess.run(
            list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=TOOL_SECONDS, env={**environ, "LC_ALL": "C"}, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TimeoutError("%s did not answer within %g s" % (command[0], TOOL_SECONDS)) from None
    except OSError:
        return ""
    return os.fsdecode(done.stdout)
