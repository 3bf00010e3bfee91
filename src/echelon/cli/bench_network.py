"""`echelon bench network`: how fast ranks exchange data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.readers import plot_files, whole
from echelon.cli.resources import machine_names
from echelon.cli.talk import print_table, say
from echelon.errors import UsageError
from echelon.host import Host

COMMAND = "bench network"
NAMES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "point-to-point")
TIMEOUT_SECONDS = 540.0
MOST_BYTES = 1 << 36
OPTIONS: tuple[Option, ...] = (
    Option(names=("-n", "--nproc-per-node"), value="N", help="the ranks of each node (default: its devices, or 2)"),
    Option(names=("--operations",), value="NAME[,NAME]", choices=NAMES, is_list=True, help="only these operations"),
    Option(names=("--sizes",), value="SIZE[,SIZE]", help="bytes: 8K,1M,256M (default: 1K to 4M; with devices to 256M)"),
    Option(names=("--machine",), value="NAME", choices=machine_names, help="compare with this machine's reference"),
)  # fmt: skip
SHARED: tuple[Option, ...] = (
    Option(names=("--plot",), value="NAME", takes="file", help="draw NAME.svg and NAME.png"),
    Option(names=("--json",), help="print all numbers as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def main(arguments: list[str], of_bench: Help) -> int:
    """Measure all operations on the nodes at hand, and compare all-reduce with the machine's reference."""
    scanned = of_bench.scan_all(arguments, (*OPTIONS, *SHARED), command=COMMAND)
    values = scanned.last
    if scanned.rest:
        raise UsageError(f"echelon bench network takes no {scanned.rest[0]}", hint="echelon bench network -n 4")
    names, sizes = _names(values), _sizes(values)
    from echelon.cli import nodes
    from echelon.trials import collective_run, network

    files = plot_files(values, usual="network")
    host = Host()
    per_node = whole(values["nproc_per_node"], "-n", least=1, usual=2) if "nproc_per_node" in values else 0
    has_devices, usual_ranks = nodes.layout(host)
    swept = collective_run.curves(
        ranks_per_node=per_node or usual_ranks,
        sizes=sizes or (network.ON_DEVICES if has_devices else network.ON_CORES),
        operations=names,
        timeout_seconds=TIMEOUT_SECONDS,
        host=host,
    )
    usual = nodes.reference(swept.result, values.get("machine", ""), host) if swept.result["sweep"] else None
    result = {**swept.result, "reference": asdict(usual) if usual is not None else None}
    if files:
        network.draw(result, files)
        say(f"the picture is in {' and '.join(files)}")
    if "json" in values:
        print(json.dumps(result, indent=1))
    else:
        print_table(network.text(result))
    wrong = network.wrong(result)
    for line in wrong:
        say(line)
    return 1 if wrong else 0


def _names(values: Mapping[str, str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(values["operations"].split(","))) if "operations" in values else NAMES
    for name in names:
        if name not in NAMES:
            raise UsageError(
                f"--operations {name or repr('')}: the choices are {', '.join(NAMES)}",
                hint="--operations all-reduce,point-to-point",
            )
    return names


def _sizes(values: Mapping[str, str]) -> tuple[int, ...]:
    """Return the bytes, ascending; empty: the usual ones."""
    if "sizes" not in values:
        return ()
    sizes = set()
    for word in values["sizes"].split(","):
        match = re.fullmatch(r"([0-9]{1,12})([KMG]?)(?:i?B)?", word.strip())
        num_bytes = int(match[1]) * _FACTORS[match[2]] if match else 0
        if not 4 <= num_bytes <= MOST_BYTES:
            raise UsageError(
                f"--sizes {word or repr('')}: give bytes from 4 to 64G, as 64K, 1M or 256M", hint="--sizes 64K,1M,16M"
            )
        sizes.add(num_bytes)
    return tuple(sorted(sizes))
