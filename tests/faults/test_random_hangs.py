"""Seeded random hangs: any kind, rank and step; the right rank is named within 30 s after the timeout."""

import random
import re
import signal
import time
from pathlib import Path

import pytest
from tests.faults.test_hangs import EXIT_CODE, LIMIT_SECONDS, NOTICE_SECONDS, ORPHAN_SECONDS, start, wait_for_hang
from tests.tiers import pick

NUM_HANGS = pick(1, all=3, soak=54)
OF_ONE_RANK = ("lock", "file", "sleeps", "spins", "stops", "worker")
KINDS = (*OF_ONE_RANK, "skips", "shapes", "agent")
IN_LOADER = 3
"""How many samples ahead the loader's worker is."""


@pytest.mark.tier("all")
@pytest.mark.parametrize("seed", range(NUM_HANGS))
def test_soak_of_hangs(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kind = KINDS[seed % len(KINDS)] if len(KINDS) < NUM_HANGS else chance.choice(KINDS)
    num_ranks, step = chance.choice((3, 4)), chance.randint(1, 4)
    odd = chance.randrange(num_ranks)
    launch = chance.choice(("warm", "exec"))
    settings = ("--launch", launch, "--env", f"ODD={odd}", "--env", f"STEP={step}")
    dumps = ("--env", f"TORCH_FR_DUMP_TEMP_FILE={tmp_path}/dump-") if kind == "shapes" else ()
    run = start(tmp_path, "sleeps" if kind == "agent" else kind, *settings, *dumps, num_ranks=num_ranks)
    if kind in ("skips", "shapes", "worker"):
        run.until_started(num_ranks)
        began = time.monotonic()
    else:
        began = wait_for_hang(run, odd)
    if kind == "agent":
        run.kill(run.events("agent")[0]["pid"], signal.SIGSTOP)
    code, _, err = run.finish(seconds=120)
    assert code == EXIT_CODE, err
    assert time.monotonic() - began < LIMIT_SECONDS + NOTICE_SECONDS
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    if kind == "agent":
        assert re.search(rf"the agent on \S+, which runs ranks 0 to {num_ranks - 1}, has been silent for", err), err
    else:
        assert re.search(rf"rank {odd} on \S+ \(local rank {odd}\) failed first: hang: .*: rank {odd} on", err), err
        assert [event["ranks"] for event in run.events("hang")] == [[odd]]
