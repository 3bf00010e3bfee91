"""Start, ask and stop the pools of an allocation: a process on each node keeps imports ready (node/pool.py)."""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from echelon.environment.agent_place import job_id
from echelon.errors import RunError
from echelon.host import Host
from echelon.launch import package
from echelon.launch.prepare import prepare
from echelon.node import pool_place
from echelon.scheduler import members
from echelon.spec import Command, Job, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from echelon.host.host import Process

IDLE_SECONDS = 1800.0
START_SECONDS = 60.0
_READY, _NO = "ready", "no: "


def start(idle_seconds: float, host: Host) -> list[str]:
    """Start a pool on each node, which outlives this process; return the first word of each: "ready", or why not."""
    plan = plan_of_nodes(host)
    started = [host.start(words, environ=environ) for words, environ in _commands(plan, "start", host, idle_seconds)]
    said = _said(started, max(plan.num_nodes, 1))
    if _READY in said and job_id(host.environ):
        _mark(host.environ)
    return said


def _said(processes: list[Process], num_nodes: int) -> list[str]:
    """Return the first line of each node's pool, as soon as all have spoken; without any, what their starter said."""
    said: list[str] = []
    others: list[str] = []
    deadline = time.monotonic() + START_SECONDS
    with selectors.DefaultSelector() as selector:
        for process in processes:
            if process.stdout is not None:
                selector.register(process.stdout, selectors.EVENT_READ)
        while len(said) < num_nodes and selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(1.0):
                text = os.read(key.fd, 1 << 16).decode("utf-8", "replace")
                for line in filter(None, map(str.strip, text.splitlines())):
                    (said if line == _READY or line.startswith(_NO) else others).append(line.removeprefix(_NO))
                if not text:
                    selector.unregister(key.fileobj)
    return said or others


def ask(act: str, host: Host) -> list[dict[str, Any]]:
    """Return the answer of each node's pool to "status" or "stop"; nothing of a node that has none."""
    if not job_id(host.environ):
        answers = [pool_place.ask(pool_place.folder(host.environ), {"kind": act})]
    else:
        answers = []
        for words, environ in _commands(plan_of_nodes(host), act, host):
            done = host.ask(words, timeout_seconds=START_SECONDS, environ=environ)
            if done.exit_code:
                raise RunError(f"the pools could not be asked: {done.stderr.strip() or done.stdout.strip()}")
            answers += [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "null"))]
        if act == "stop":
            _unmark(host.environ)
    return sorted((answer for answer in answers if answer is not None), key=itemgetter("node"))


def start_beside(host: Host, say: Callable[[str], None]) -> None:
    """Start the pools of an interactive allocation with its first run, and say so."""
    if not os.path.exists(_mark_path(host.environ)) and _READY in start(IDLE_SECONDS, host):
        say("keeps what this script imports ready on its nodes for later runs (--no-pool, echelon pool stop)")


def plan_of_nodes(host: Host) -> Plan:
    """Return a plan that has a process on each node of the allocation, or one on this machine."""
    return prepare(Job(command=Command(kind="program", target=sys.executable, arguments=())), host)


def _commands(
    plan: Plan, act: str, host: Host, idle_seconds: float = 0.0
) -> list[tuple[tuple[str, ...], Mapping[str, str]]]:
    words = (plan.python, "-I", "-S", package.cached(), "pool", act, f"{idle_seconds:g}")
    starts = members.of(plan.where).starts(plan, words, host.environ)
    return [(start.words, start.environ) for start in starts]


def _mark_path(environ: Mapping[str, str]) -> str:
    return os.path.join(os.path.dirname(package.cached()), f"pool-{job_id(environ)}")


def _mark(environ: Mapping[str, str]) -> None:
    """Note that this allocation has pools: its shell may be on a node without one."""
    with open(_mark_path(environ), "w", encoding="utf-8"):
        pass


def _unmark(environ: Mapping[str, str]) -> None:
    if os.path.exists(_mark_path(environ)):
        os.unlink(_mark_path(environ))
