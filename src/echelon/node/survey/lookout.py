"""`python3 node.pyz lookout RUN_DIRECTORY NODE`: survey a node beside its ranks, then sample its devices' load."""

import json
import os
import time
from typing import Any, Dict, List, Mapping

from .. import agent_spec
from . import load, take
from .nouns import Device, plain

NICENESS = 10  # the ranks come first: on a core that a rank uses, about a tenth is left
LOOK_SECONDS = 10.0
TELL_SECONDS = 60.0


def main(run_directory: str, node: str, environ: Mapping[str, str]) -> int:
    """Send the survey of the node once, then the load of its devices, until the agent is gone."""
    os.nice(NICENESS)
    asked = take.Asked(**(agent_spec.read_fields(run_directory)["looks"] or {}))._replace(node=node)
    try:
        survey = take.survey(asked, environ)
        _say("survey", survey=plain(survey))
        follow(asked.root, [device for device in survey.devices.devices if device.is_visible], environ)
    except BrokenPipeError:
        pass  # the agent is gone
    return 0


def follow(root: str, devices: List[Device], environ: Mapping[str, str]) -> None:
    """Send the load of the devices once a minute; return if it is unknown."""
    busy = Busy()
    told = time.monotonic()
    while percentages := load.percentages(root, devices, environ):
        busy.note(percentages)
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            _say("load", devices=busy.rows())
        time.sleep(LOOK_SECONDS)


class Busy:
    """The load of each device so far."""

    def __init__(self) -> None:
        self._looks: Dict[int, int] = {}
        self._sum: Dict[int, int] = {}
        self._most: Dict[int, int] = {}

    def note(self, percentages: Mapping[int, int]) -> None:
        """Add one sample."""
        for number, percent in percentages.items():
            self._looks[number] = self._looks.get(number, 0) + 1
            self._sum[number] = self._sum.get(number, 0) + percent
            self._most[number] = max(self._most.get(number, 0), percent)

    def rows(self) -> List[Dict[str, Any]]:
        """Return the number of samples, the mean and the maximum of each device."""
        return [
            {"device": number, "looks": looks, "mean": round(self._sum[number] / looks, 1), "most": self._most[number]}
            for number, looks in self._looks.items()
        ]


def _say(kind: str, **fields: Any) -> None:
    data = json.dumps({"kind": kind, **fields}).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]
