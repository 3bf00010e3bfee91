"""Measure what checks cost a start: `python -m benchmarks.check`, from the repository root.

Eight nodes of a private Slurm with eight ranks each, by the command as a user gives it; and 1,024 nodes that one
process imitates, each with the survey of a whole LUMI node, from the start of the step to the report.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import selectors
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Figure, Row, Spread, at_most, markdown
from benchmarks.meter import BenchmarkError
from echelon.checks.examine import examine
from echelon.checks.finding import Wanted
from echelon.checks.report import text
from echelon.host import Host
from echelon.launch import visit
from echelon.node.channel import Closed
from echelon.node.connect import connect
from echelon.node.survey import visit as on_node
from echelon.node.survey.nouns import Survey, plain
from echelon.node.survey.take import SurveyRequest

NUM_NODES, NUM_RANKS = 8, 8
NUM_SIMULATED = 1024
DIFFERENT = 777  # the node that has a device less
ECHELON = (sys.executable, "-m", "echelon")
TIMED = """
import subprocess, sys, time
began = time.monotonic()
done = subprocess.run(sys.argv[1:], capture_output=True)
print(time.monotonic() - began)
print((done.stdout or done.stderr).decode())
"""


def main() -> int:
    """Measure both and print them as a table."""
    if sys.argv[1:2] == ["simulate"]:
        simulate(sys.argv[-1], int(sys.argv[2]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    nodes = on_slurm(arguments.rounds)
    simulated = Spread(tuple(on_simulated() for _ in range(arguments.rounds)))
    row = Row(
        title="`echelon check --fast`",
        figures=(
            Figure(what=f"{NUM_NODES} Slurm nodes of {NUM_RANKS} ranks", unit="s", target=at_most(1), ours=nodes),
            Figure(what=f"{NUM_SIMULATED:,} simulated nodes", unit="s", target=at_most(5), ours=simulated),
        ),
    )
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
    print(markdown([row]))
    return 0


def on_slurm(num_rounds: int) -> Spread:
    """Return the seconds of the command inside an allocation of eight nodes, Python's start included."""
    from tests.cluster import Cluster

    values = []
    with Cluster(num_nodes=NUM_NODES) as cluster, tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-c", TIMED, *ECHELON, "check", "--fast", "-n", str(NUM_RANKS), "--json")
        for _ in range(num_rounds):
            done = cluster.salloc(
                "--quiet", "--partition=standard-g", "--ntasks-per-node=1", f"--cpus-per-task={NUM_RANKS}",
                command=command, nodes=NUM_NODES, cwd=Path(folder),
            )  # fmt: skip
            seconds, _, report = done.stdout.partition("\n")
            if not report.lstrip().startswith("{"):
                raise BenchmarkError(report)
            surveys = json.loads(report)["surveys"]
            assert len(surveys) == NUM_NODES
            assert all(survey["answered"] for survey in surveys)
            values.append(float(seconds))
    return Spread(tuple(values))


def on_simulated() -> float:
    """Return the seconds from the start of the step to the report on all nodes."""
    names = tuple(f"nid{number:06d}" for number in range(5000, 5000 + NUM_SIMULATED))
    step = (sys.executable, "-m", "benchmarks.check", "simulate", str(NUM_SIMULATED))
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        host = _Here(before)
        os.chdir(folder)
        try:
            began = time.monotonic()
            surveys = visit.survey_nodes(
                visit.Round(nodes=names, step=step, environ=host.environ, asked=SurveyRequest(), meets=False), host
            )
            findings = examine(surveys, Wanted(num_nodes=NUM_SIMULATED, ranks_per_node=8))
            shown = text(surveys, findings, seconds=0.0, with_colour=False)
            seconds = time.monotonic() - began
        finally:
            os.chdir(before)
    assert f"nid{5000 + DIFFERENT:06d} differs: 7 of 8 devices" in shown, shown
    assert f"{NUM_SIMULATED - 1} nodes alike" in shown, shown
    return seconds


class _Here(Host):
    """This machine, where modules of this repository are found from any folder."""

    def __init__(self, root: str) -> None:
        self._root = root

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": self._root}


def simulate(directory: str, num_nodes: int) -> None:
    """Be all nodes of a round: each connects by itself and sends a survey of its own."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    spec, secret = on_node.read(directory)
    survey = _lumi()
    selector = selectors.DefaultSelector()
    for index in range(num_nodes):
        name = f"nid{5000 + index:06d}"
        channel = connect(spec.addresses[-1:], secret, on_node.facts(index, name), seconds=30.0)
        own = survey._replace(node=name, time=time.time())
        if index == DIFFERENT:
            own = own._replace(devices=own.devices._replace(devices=own.devices.devices[:7]))
        channel.send("survey", survey=plain(own), port=0)
        selector.register(channel, selectors.EVENT_READ, channel)
    while selector.get_map():
        for key, _ in selector.select():
            key.data.flush()
            try:
                is_over = any(message["kind"] == "end" for message in key.data.receive())
            except Closed:
                is_over = True
            if is_over:
                selector.unregister(key.fileobj)


def _lumi() -> Survey:
    """Return what a whole LUMI node says of itself."""
    from tests.checks import nodes

    good = nodes.BY_NAME["LUMI, a whole node"]
    with tempfile.TemporaryDirectory() as folder:
        return nodes.survey(good, nodes.build(good, Path(folder) / "node"))


if __name__ == "__main__":
    sys.exit(main())
