"""`python3 node.pyz lookout RUN_DIRECTORY NODE`: survey a node beside its ranks, then sample its devices and itself."""

import json
import os
import time
from typing import Any, Mapping

from .. import agent_spec
from . import take
from .nouns import Survey, plain
from .sampling.sampler import Sampler

NICENESS = 10  # the ranks come first: on a core that a rank uses, about a tenth is left
LOOK_SECONDS = 1.0
LEAST_TELL_SECONDS, MOST_TELL_SECONDS = 2.0, 10.0
TELL_SHARE = 1 / 200
"""The time between two messages, as a part of the age of the run: half a percent is missing at the end at most."""


def main(run_directory: str, node: str, environ: Mapping[str, str]) -> int:
    """Send the survey of the node once, if it is asked for, then what is sampled of it, until the agent is gone."""
    os.nice(NICENESS)
    asked = take.SurveyRequest(**(agent_spec.read_fields(run_directory)["looks"] or {}))._replace(node=node)
    try:
        survey = take.survey(asked, environ)
        if asked.is_told:
            _say("survey", survey=plain(survey))
        follow(asked.root, survey, environ)
    except BrokenPipeError:
        pass  # the agent is gone
    return 0


def follow(root: str, survey: Survey, environ: Mapping[str, str]) -> None:
    """Sample the node once a second, and send what was seen every few seconds; return if nothing can be seen."""
    began = told = due = time.monotonic()
    sampler = Sampler(root, survey, environ, began)
    while not sampler.sees_nothing:
        due = max(due + LOOK_SECONDS, time.monotonic())  # samples that a slow driver has missed are left out
        time.sleep(max(0.0, due - time.monotonic()))
        now = time.monotonic()
        sampler.look(now)
        wait = min(MOST_TELL_SECONDS, max(LEAST_TELL_SECONDS, (now - began) * TELL_SHARE))
        if now - told >= wait - LOOK_SECONDS / 2:  # the sample that is nearest
            told = now
            _say("load", **sampler.message(now))


def _say(kind: str, **fields: Any) -> None:
    data = json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]
