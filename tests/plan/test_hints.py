"""Every hint of `echelon plan` is accepted when it is typed."""

import itertools
import random
import re
from collections.abc import Iterator

import pytest
from tests.tiers import pick, some

from echelon import cli

MACHINES = (
    "lumi", "roihu", "mahti", "puhti", "hipergator", "frontier", "alps", "leonardo", "snellius", "isambard-ai",
    "perlmutter",
)  # fmt: skip
NUM_SAMPLED = 24  # of each machine; all of them take minutes
SIZES = ["--gpus 1", "--gpus 3", "--gpus 4", "--gpus 11", "--gpus 40", "--gpus 70", "--gpus 9000", "--nodes 1",
         "--nodes 12", "--nodes 3 --gpus 8", "--gpus-per-node 8 --nodes 11", "--gpus-per-node 16",
         "--gpus 20 --nodes 1", "--gpus 10 --gpus-per-node 4", "--gpus 8 --nodes 2 --gpus-per-node 8", ""]  # fmt: skip
WISHES = ["", "--time 30d", "--mem-per-gpu 300G", "--mem 2T", "--cores-per-gpu 100", "--cpus-per-task 300",
          "--global-batch 100", "--chip H100", "--exclusive"]  # fmt: skip
PARTITIONS = ["", "-p small-g", "-p dev-g", "-p standard-g", "-p gpumedium", "-p gputest", "-p gpularge", "-p small",
              "-p hpg-b200", "-p batch --qos debug", "--qos regular", "-p boost_usr_prod", "-p normal"]  # fmt: skip


def lines(machine: str) -> Iterator[list[str]]:
    """Return command lines for a machine: all of the sweep, or the same sample each time."""
    every = [" ".join(parts).split() for parts in itertools.product(SIZES, WISHES, PARTITIONS)]
    chosen = pick(random.Random(machine).sample(every, NUM_SAMPLED), all=every)
    return (["plan", "--machine", machine, *words] for words in chosen)


def alternatives(hint: str) -> list[list[str]]:
    """Return what a hint offers to type, without the words for people between."""
    texts = re.split(r"\s{2,}or,? ", hint)
    return [text.rpartition(": ")[2].split() for text in texts if "echelon submit" not in text]


@pytest.mark.parametrize("machine", some(MACHINES, 12))
def test_hints_are_accepted(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is refused, each alternative of its hint makes the whole line acceptable."""
    num_hints = 0
    for line in lines(machine):
        code = cli.main(line)
        out, said = capsys.readouterr()
        assert code in (0, 2), line
        assert not re.search(r"\bNone\b|\b1 (nodes|GPUs|devices|cores|ranks)\b", out + said), (line, out, said)
        hint = said.partition("\n  hint: ")[2].strip()
        for words in alternatives(hint) if hint else []:
            assert words[0].startswith("--"), (line, said)
            num_hints += 1
            assert cli.main([*line, *words]) == 0, (line, words, said, capsys.readouterr().err)
            capsys.readouterr()
    assert num_hints >= NUM_SAMPLED // 4


def test_hint_where_all_is_too_much(capsys: pytest.CaptureFixture[str]) -> None:
    """Roihu's medium partition takes 4 devices, and its large one all 40 of those who have applied for it."""
    assert cli.main(["plan", "--machine", "roihu", "--gpus", "40"]) == 2
    assert "hint: --gpus 4   or, if you have applied for it: --partition gpularge\n" in capsys.readouterr().err


def test_no_hint_where_nothing_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    """A wish that nothing can grant gets no advice that fails."""
    assert cli.main(["plan", "--machine", "lumi", "--gpus", "2", "-p", "lumid", "--time", "1h"]) == 2
    said = capsys.readouterr().err
    assert "at most 1 device in a job, but the job takes 2" in said
    assert "hint: --gpus 1   or --partition standard-g" in said
