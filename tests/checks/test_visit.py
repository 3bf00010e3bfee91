"""Nodes that are late, dead or of another opinion: the others are heard all the same."""

import os
import sys
from pathlib import Path

import pytest

from echelon.checks.examine import bad_nodes, examine
from echelon.checks.finding import Wanted
from echelon.checks.report import text
from echelon.cli import nodes
from echelon.errors import RunError
from echelon.host import Host
from echelon.launch import visit
from echelon.node.survey.nouns import Survey
from echelon.node.survey.take import SurveyRequest

# Stands in for the step: starts the survey of each node on this machine, with the variables of a task.
STEP = """
for index in {indexes}; do
  export SLURM_PROCID=$index SLURM_NODEID=$index SLURM_LOCALID=0 SLURMD_NODENAME=127.0.5.$((index + 1))
  if test $index = 2; then ({bad}) & else "$@" & fi
done
wait
"""
NODES = tuple(f"127.0.5.{index + 1}" for index in range(4))


class Alone(Host):
    """This machine, with few variables."""

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": "/tmp"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def survey(bad: str, *, meets: bool = False, seconds: float = 1.0, indexes: str = "0 1 2 3") -> list[Survey]:
    """Survey four nodes of which the third is started by other words."""
    step = ("bash", "-c", STEP.format(bad=bad, indexes=indexes), "step")
    asked = SurveyRequest(search_path=tuple(sys.path), part_seconds=seconds)
    return visit.survey_nodes(
        visit.Round(nodes=NODES, step=step, environ=Alone().environ, asked=asked, meets=meets, gather_seconds=20.0),
        Alone(),
    )


def judged(surveys: list[Survey]) -> tuple[list[str], list[str]]:
    findings = examine(surveys, Wanted(num_nodes=4, ranks_per_node=1))
    return [f"{each.node}: {each.message}" for each in findings if each.node], bad_nodes(surveys, findings)


def test_all_nodes_meet(folder: Path) -> None:
    """Nodes that are well answer, and reach each other."""
    surveys = survey('"$@"', meets=True)
    assert [each.node for each in surveys] == list(NODES)
    assert all("cores" in each.answered and not each.unreached for each in surveys)
    assert not list(folder.iterdir())


def test_a_node_that_never_answers_is_left_out(folder: Path) -> None:
    """A node that hangs before it can say anything costs its deadline; the report names it."""
    surveys = survey("sleep 30")
    said, bad = judged(surveys)
    assert bad == ["127.0.5.3"]
    assert "127.0.5.3: the node does not answer" in said
    shown = text(surveys, examine(surveys, Wanted(num_nodes=4)), seconds=1.0, with_colour=False)
    assert "3 nodes alike: " in shown
    assert "127.0.5.3 differs: the node does not answer" in shown


def test_a_node_that_dies_is_left_out(folder: Path) -> None:
    """A node whose Python cannot start is named."""
    assert judged(survey("echo no Python here >&2; exit 127"))[1] == ["127.0.5.3"]


def test_a_node_with_a_setting_of_its_own_is_named(folder: Path) -> None:
    """A variable that one node has for itself is told with the value of the others."""
    said, bad = judged(survey('NCCL_PROTO=LL "$@"'))
    assert "127.0.5.3: NCCL_PROTO is LL; on most nodes it is not set" in said
    assert bad == []  # a warning


def test_a_node_with_fewer_cores_is_named(folder: Path) -> None:
    """A mask that one node alone has is found by comparison, where there is more than one core."""
    if os.cpu_count() == 1:
        pytest.skip("one core cannot be made fewer")
    said, _ = judged(survey('taskset -c 0 "$@"'))
    assert "127.0.5.3: 1 cores may be used" in said


def test_the_start_of_a_run_is_told_in_one_line(folder: Path) -> None:
    """What a run calls: the worst finding with its remedy, whether it is refused, and the nodes to do without."""
    told = nodes.before_run(level="fast", ranks_per_node=4096, exclude_bad=True, host=Alone())
    assert told.is_refused
    assert told.line.startswith("error on ")
    assert "4096 ranks on" in told.line
    assert "echelon run -n" in told.line
    assert told.left_out == ()  # there is no other node
    fine = nodes.before_run(level="fast", ranks_per_node=1, exclude_bad=False, host=Alone())
    assert not fine.is_refused


def test_two_answers_for_one_node_are_one(folder: Path) -> None:
    """A node that comes twice is refused the second time, and the survey goes on."""
    surveys = survey('"$@"', indexes="0 1 2 3 3")
    assert [each.node for each in surveys] == list(NODES)


def test_no_node_at_all_is_an_error_with_the_steps_words(folder: Path) -> None:
    """What the step said is passed on."""
    with pytest.raises(RunError, match="no allocation today"):
        visit.survey_nodes(
            visit.Round(
                nodes=NODES, step=("sh", "-c", "echo no allocation today >&2; exit 1"), environ=Alone().environ,
                asked=SurveyRequest(), meets=False, gather_seconds=10.0,
            ),
            Alone(),
        )  # fmt: skip
