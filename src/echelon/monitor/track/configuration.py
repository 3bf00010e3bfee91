"""The configuration of a run by names, and what is known of the run at its end."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from echelon.monitor import account, costs, predicted
from echelon.monitor.recorded import Recorded

_OPTION = re.compile(r"--?(?P<name>[^\W\d][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_PAIR = re.compile(r"\+{0,2}(?P<name>[^\W\d][\w./@-]*)=(?P<value>.*)", re.DOTALL)  # as Hydra has them


def of_arguments(words: Sequence[str]) -> dict[str, str]:
    """Return a script's arguments by name, as far as their form tells; a value follows its option.

    >>> of_arguments(["--lr", "0.1", "--amp", "--size=3", "model.depth=2", "data.txt"])
    {'lr': '0.1', 'amp': 'true', 'size': '3', 'model.depth': '2', 'argument.1': 'data.txt'}
    """
    named: dict[str, str] = {}
    option, number = "", 0
    for word in words:
        if match := _OPTION.fullmatch(word):
            option = "" if match["value"] is not None else match["name"]
            named[match["name"]] = "true" if option else match["value"]
        elif option:
            named[option], option = word, ""
        elif match := _PAIR.fullmatch(word):
            named[match["name"]] = match["value"]
        else:
            number += 1
            named[f"argument.{number}"] = word
    return named


def of_run(recorded: Recorded, num_ranks: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the script's arguments, and below `echelon.` how it runs and what was predicted of it."""
    plan, scale = recorded.plan, recorded.scale_options
    words = [str(word) for word in plan.get("argv") or ()][1 if plan.get("is_python") else 0 :]
    ours = {
        "command": shlex.join(words),
        "run": os.path.abspath(recorded.path),
        "ranks": num_ranks,
        "nodes": plan.get("num_nodes"),
        "scale": scale.how if scale is not None else "off",
        "machine": recorded.booking.get("machine") or plan.get("machine"),
        "slurm_job": plan.get("job_id"),
        **predicted.expected(recorded, num_ranks, environ),
    }
    arguments = of_arguments(words[2 if words[:1] == ["-m"] else 1 :])
    return arguments | {f"echelon.{name}": str(value) for name, value in ours.items() if value}


def summary(recorded: Recorded, environ: Mapping[str, str]) -> dict[str, float]:
    """Return what a run used, as far as it is known."""
    used = account.of_run(recorded)
    spent = costs.of_run(recorded, used, environ)
    numbers = {
        "run/seconds": used.seconds,
        "run/goodput": used.goodput or None,
        "run/gpu_hours": used.device_hours or None,
        "run/device_kwh": used.energy_joules / costs.JOULES_PER_KWH if used.energy_joules is not None else None,
        "run/device_kg_co2": spent.kg_co2,
        "run/price": spent.price,
    }
    return {name: float(number) for name, number in numbers.items() if number is not None}
