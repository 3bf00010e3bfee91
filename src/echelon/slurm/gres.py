"""Ask Slurm for a job's devices on each node: no variable gives them for every kind of request."""

from __future__ import annotations

import re

from echelon.environment import hostlist
from echelon.errors import EchelonError
from echelon.host import Host

ASK_SECONDS = 5.0


def ask(host: Host, job_id: str) -> dict[str, int]:
    """Return devices by node; empty if Slurm does not answer or does not tell."""
    try:
        answer = host.ask(("scontrol", "--details", "show", "job", job_id), timeout_seconds=ASK_SECONDS)
    except EchelonError:
        return {}
    return read(answer.stdout, job_id) if answer.exit_code == 0 else {}


def read(text: str, job_id: str) -> dict[str, int]:
    """Read one job's record of `scontrol --details show job`, which shows all elements of an array job.

    Nodes=nid[005000-005001] CPU_IDs=1-7,9 Mem=61440 GRES=gpu:mi250:8(IDX:0-7)
    """
    devices: dict[str, int] = {}
    records = [record for record in re.split(r"(?m)^(?=JobId=)", text) if re.match(rf"JobId={job_id}\b", record)]
    for nodes, gres in re.findall(r"\bNodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S*)", "".join(records)):
        count = sum(int(number) for number in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:([0-9]{1,9})\(", gres))
        for node in hostlist.expand(nodes):
            devices[node] = devices.get(node, 0) + count
    return devices
