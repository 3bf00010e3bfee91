"""What lookouts see beside a run: said once, never in the way, and nothing of them is left."""

import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.cluster import Cluster
from tests.runs import ECHELON

from echelon.errors import UsageError
from echelon.launch import lookouts
from echelon.launch.crew import AgentConnection
from echelon.launch.lookouts import Look, Lookouts, NodeFinding
from echelon.launch.run_directory import RunDirectory
from echelon.node import sweep
from echelon.node.agent_spec import AgentSpec, Placement
from echelon.node.lookout import Lookout
from echelon.node.survey.nouns import Survey, plain

UNTIL_FOUND = 'until grep -q \'"event": "finding"\' "$ECHELON_RUN_DIR/events.jsonl"; do sleep 0.1; done'
MISSPELT = "nothing reads NCLL_DEBUG; programs read NCCL_DEBUG; export NCCL_DEBUG=INFO; unset NCLL_DEBUG"


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ECHELON, "run", "-n", "1", "--timeout", "2m", *words],
        cwd=folder, env={**os.environ, **more}, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def said(stderr: str) -> list[str]:
    return [line.removeprefix("echelon: check: ") for line in stderr.splitlines() if "check: " in line]


def test_a_machine_with_devices_is_looked_at(tmp_path: Path) -> None:
    """While the rank runs its node's finding is said in a line and written down; the run goes on and is fine."""
    environ = {"CUDA_VISIBLE_DEVICES": "0", "NCLL_DEBUG": "INFO"}
    done = run(tmp_path, "--run-dir", "seen", "--", "sh", "-c", UNTIL_FOUND, **environ)
    assert done.returncode == 0, done.stderr
    assert [line for line in said(done.stderr) if MISSPELT in line and line.startswith("warning on ")]
    events = [json.loads(line) for line in (tmp_path / "seen/events.jsonl").read_text().splitlines()]
    found = [event for event in events if event["event"] == "finding"]
    assert [event["severity"] for event in found if "NCLL_DEBUG" in event["message"]] == ["warning"]
    assert [event["event"] for event in events][-2:] == ["exit", "end"]


@pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "0", "ECHELON_CHECK": "off"}])
def test_nobody_looks(tmp_path: Path, environ: dict[str, str]) -> None:
    """Without devices, and where it is switched off, agents are told to look at nothing."""
    done = run(tmp_path, "--run-dir", "unseen", "--", "true", NCLL_DEBUG="INFO", **environ)
    assert (done.returncode, said(done.stderr)) == (0, [])
    assert json.loads((tmp_path / "unseen/agent.json").read_text())["looks"] is None


def test_a_check_before_the_start_is_not_repeated(tmp_path: Path) -> None:
    """The lookout then only samples."""
    done = run(tmp_path, "--run-dir", "checked", "--check", "fast", "--", "true", CUDA_VISIBLE_DEVICES="0")
    asked = json.loads((tmp_path / "checked/agent.json").read_text())["looks"]
    assert (done.returncode, asked["is_told"]) == (0, False)


def test_the_variable_has_the_options_choices(tmp_path: Path) -> None:
    """ECHELON_CHECK=fast looks before the start, as --check fast does, and a wrong value is named."""
    done = run(tmp_path, "--", "touch", "begun", ECHELON_CHECK="fast", NCCL_SOCKET_IFNAME="hsn0")
    assert done.returncode == 2 and not (tmp_path / "begun").exists()
    done = run(tmp_path, "--", "touch", "begun", ECHELON_CHECK="quick")
    assert done.returncode == 2
    assert "ECHELON_CHECK=quick: the choices are fast, full, off" in done.stderr


@pytest.mark.slurm
def test_nodes_of_an_allocation_are_looked_at(slurm: Cluster, tmp_path: Path) -> None:
    """One line for what both nodes have; the lines are those that `echelon check` has above a note."""
    environ = {**slurm.environ, "ECHELON_CHECK": "", "NCLL_DEBUG": "INFO"}
    script = ["--show", "none", "--", "sh", "-c", UNTIL_FOUND]
    both = (
        f"{' '.join(ECHELON)} check --fast -n 1 --json > check.json;"
        f' exec {" ".join(ECHELON)} run -n 1 --timeout 2m "$@"'
    )
    done = slurm.run(
        "salloc", "--quiet", "-N2", "sh", "-c", both, "sh", *script, env=environ, cwd=tmp_path, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "check.json").read_text())["findings"]
    wanted = [each for each in found if each["severity"] != "note"]
    lines = said(done.stderr)
    assert f"warning on nid[005000-005001]: {MISSPELT}" in lines
    assert len(lines) == len(wanted), (lines, wanted)
    for line, each in zip(lines, wanted, strict=True):
        assert each["message"] in line and each["remedy"] in line


# The supervisor's side


class Heard:
    """Lookouts with a look that finds what a test says."""

    def __init__(self, findings: Callable[[Sequence[Survey]], Sequence[str]], num_nodes: int = 2) -> None:
        self.said: list[str] = []
        self.events: list[dict[str, Any]] = []
        directory = cast(RunDirectory, SimpleNamespace(event=lambda kind, **fields: self.events.append(fields)))

        def judge(surveys: Sequence[Survey]) -> list[NodeFinding]:
            return [NodeFinding(line=line, fields={"message": line}) for line in findings(surveys)]

        self.lookouts = Lookouts(Look(asked={}, judge=judge), directory, num_nodes, self.said.append)

    def hear(self, node: str, kind: str, **fields: Any) -> None:
        member = cast(AgentConnection, SimpleNamespace(placement=SimpleNamespace(node=node), clock_offset=0.5))
        self.lookouts.hear(member, {"kind": kind, **fields})

    def answer(self, node: str) -> None:
        self.hear(node, "survey", survey=plain(Survey("what it calls itself")))


def test_said_once_all_have_answered() -> None:
    """Nodes are judged together, under the names that the run has for them; the end adds nothing."""
    heard = Heard(lambda surveys: [f"{each.node} is {each.ahead_seconds} s ahead" for each in surveys])
    heard.answer("nid1")
    assert heard.said == []
    heard.answer("nid2")
    heard.lookouts.close()
    assert heard.said == ["check: nid1 is 0.5 s ahead", "check: nid2 is 0.5 s ahead"]
    assert len(heard.events) == 2


@pytest.mark.parametrize(("late_seconds", "wanted"), [(0.0, ["check: nid1"]), (60.0, [])])
def test_a_node_that_never_answers(monkeypatch: pytest.MonkeyPatch, late_seconds: float, wanted: list[str]) -> None:
    """The others are judged when the run is over, unless it was too short for an answer."""
    monkeypatch.setattr(lookouts, "LATE_SECONDS", late_seconds)
    heard = Heard(lambda surveys: [each.node for each in surveys])
    heard.answer("nid1")
    heard.lookouts.close()
    assert heard.said == wanted


def test_what_cannot_be_judged_stops_nothing() -> None:
    """An error of ours is a line, and an answer that is none is a node that does not answer."""

    def judge(surveys: Sequence[Survey]) -> list[str]:
        raise UsageError("; ".join(f"{each.node}: {each.silent['node']}" for each in surveys))

    heard = Heard(judge, num_nodes=1)
    heard.hear("nid1", "survey", survey={"odd": 1})
    assert len(heard.said) == 1
    assert heard.said[0].startswith("check: echelon cannot judge the nodes: nid1: gave an unexpected answer")


def test_all_well_is_silence_and_many_findings_are_few_lines() -> None:
    """Nothing is said of nodes that are as they should be; of nine findings five, and all are events."""
    well, bad = Heard(lambda _: []), Heard(lambda _: [f"finding {n}" for n in range(9)])
    for heard in (well, bad):
        heard.answer("nid1")
        heard.answer("nid2")
    assert well.said == []
    assert len(bad.said) == 6 and "and 4 more" in bad.said[-1]
    assert len(bad.events) == 9


# The node's side


HANGING = """
import json
import os
import time


def say():
    print(json.dumps({"kind": "survey", "survey": os.getpid()}), flush=True)


say()
if os.fork() == 0:
    say()
time.sleep(600)
"""


def test_a_lookout_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    """What it says is passed on; at the end neither it nor what it has started is left."""
    archive = tmp_path / "hanging.py"
    archive.write_text(HANGING)
    selector, told = selectors.DefaultSelector(), []
    child = Lookout(selector, lambda kind, **fields: told.append((kind, int(fields["survey"]))))
    placement = Placement(0, 0, "nid1", 0, 1, 1, 1, 0)
    spec = cast(AgentSpec, SimpleNamespace(looks={}))
    child.prepare(spec, placement, dict(os.environ), str(archive), str(tmp_path))
    deadline = time.monotonic() + 60
    while len(told) < 2 and time.monotonic() < deadline:
        for key, _ in selector.select(child.advance() or 1.0):
            key.data()
    assert [kind for kind, _ in told] == ["survey"] * 2
    child.close()
    for pid in child.pids:
        os.waitpid(pid, 0)
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for _, pid in told) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [pid for _, pid in told if is_alive(pid)]
    assert not selector.get_map()


def test_ranks_that_end_do_not_take_the_lookout_with_them(tmp_path: Path) -> None:
    """What a lookout has started is not taken for the ranks': what was killed seemed not to answer within 15 s."""
    mark = f"{tmp_path}.0"
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"],
        env={**os.environ, sweep.MARK: mark}, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert shell.stdout is not None
    inner = int(shell.stdout.readline())
    try:
        pids, sessions = frozenset({os.getpid()}), frozenset({shell.pid})
        assert not {shell.pid, inner} & set(sweep.leftovers(mark, (), sweep.Spared(pids, sessions)))
        assert {shell.pid, inner} <= set(sweep.leftovers(mark, (), sweep.Spared(pids)))
    finally:
        os.killpg(shell.pid, 9)
        shell.communicate()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_nothing_is_started_where_nothing_is_asked() -> None:
    """Without a look there is no child, and none is named to the sweep that ends what a run leaves behind."""
    child = Lookout(selectors.DefaultSelector(), lambda *_words, **_fields: None)
    child.prepare(cast(AgentSpec, SimpleNamespace(looks=None)), Placement(0, 0, "n", 0, 1, 1, 1, 0), {}, "x", "y")
    assert (child.advance(), child.pids) == (None, ())
    child.close()
