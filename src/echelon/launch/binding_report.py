"""Compare the cores of the ranks with the plan's, and report the result in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from echelon.launch.failure import MISPLACED, Failure
from echelon.launch.run_directory import RunDirectory
from echelon.node.binding import ASKED_OFF, NO_OWN_CORES
from echelon.node.channel import Message
from echelon.spec import Plan
from echelon.units import counted

EXPECTED = frozenset({ASKED_OFF, NO_OWN_CORES})  # reasons that are not reported
MAX_NAMED = 4  # the most ranks that a warning names; events.jsonl has all


class ReportedBindings:
    """The bindings that agents have reported for their ranks of one attempt."""

    def __init__(self, plan: Plan, directory: RunDirectory, num_agents: int, say: Callable[[str], None]) -> None:
        self._is_strict = plan.bind == "strict"
        self._documented = plan.documented_cores
        self._directory, self._num_agents, self._say = directory, num_agents, say
        self._ranks: dict[int, dict[str, Any]] = {}
        self._agents: set[int] = set()
        self._nodes: set[str] = set()
        self._unbound: dict[str, list[str]] = {}
        self._num_unseen = 0

    def hear(self, agent_index: int, node: str, message: Message) -> Failure | None:
        """Record an agent's report of bound or unbound ranks; return a failure if that ends a strict run."""
        fields = {name: value for name, value in message.items() if name != "kind"}
        self._directory.event(message["kind"], node=node, **fields)
        if message["kind"] == "unbound":
            wrong = self._note_unbound(agent_index, node, message["why"])
        else:
            wrong = self._compare(agent_index, node, message)
        if not wrong or not self._is_strict:
            return None
        return Failure(cause=MISPLACED, detail=f"{wrong[0]} (--bind strict)", time=0.0)

    def _note_unbound(self, agent_index: int, node: str, why: str) -> list[str]:
        self._unbound.setdefault(why, []).append(node)
        self._agents.add(agent_index)
        self._conclude()
        return [f"echelon cannot bind any rank on {node}: {why}"]

    def _compare(self, agent_index: int, node: str, message: Message) -> list[str]:
        """Return the differences from the plan, once all agents have reported."""
        rows = [{**row, "node": node} for row in message["ranks"]]
        self._ranks.update({row["rank"]: row for row in rows})
        if message["is_change"]:
            return self._warn(rows, since="; it was moved after the start")
        self._agents.add(agent_index)
        self._nodes.add(node)
        self._num_unseen += message["num_unseen"]
        return self._conclude()

    def _conclude(self) -> list[str]:
        """Report unbound and misplaced ranks, once all agents have reported."""
        if len(self._agents) < self._num_agents:
            return []
        for why, nodes in self._unbound.items():
            if why not in EXPECTED:
                self._say(f"note: echelon does not bind the ranks on {_some(list(dict.fromkeys(nodes)))}: {why}")
        if not self._ranks:
            return []
        wrong = self._warn(self._ranks.values(), since="")
        if not wrong:
            self._say(self._proved())
        self._compare_with_facts()
        return wrong

    def _compare_with_facts(self) -> None:
        """Report nodes that differ from the machine's published layout; only fully used nodes can show that."""
        if not self._documented:
            return
        from echelon.topology.binding import cpu_list

        for node in sorted(self._nodes):
            rows = [row for row in self._ranks.values() if row["node"] == node]
            if len(rows) != len(self._documented):
                continue
            other = [row for row in rows if row["wanted_device"] >= 0 and not self._is_documented(row)]
            if other:
                row = other[0]
                facts = cpu_list(dict(self._documented)[row["wanted_device"]])
                self._say(
                    f"note: on {node} the cores nearest to device {row['wanted_device']} are "
                    f"{row['wanted_cpus']}, but the machine's facts say {facts}; echelon uses the cores that "
                    "the node reports"
                )
                return

    def _is_documented(self, row: dict[str, Any]) -> bool:
        from echelon.topology.binding import parse_cpu_list

        documented = dict(self._documented).get(row["wanted_device"])
        return documented is None or bool(set(documented) & set(parse_cpu_list(row["wanted_cpus"])))

    def _warn(self, rows: Iterable[dict[str, Any]], since: str) -> list[str]:
        wrong = [text for row in sorted(rows, key=lambda row: row["rank"]) if (text := difference(row))]
        for text in wrong[:MAX_NAMED]:
            self._say(f"warning: {text}{since}")
        if len(wrong) > MAX_NAMED:
            self._say(f"warning: and {len(wrong) - MAX_NAMED} more ranks run elsewhere than planned (events.jsonl)")
        return wrong

    def _proved(self) -> str:
        rows = list(self._ranks.values())
        ranks = counted(len(rows), "rank")
        nodes = f" on {len(self._nodes)} nodes" if len(self._nodes) > 1 else ""
        counts = sorted({row["num_cores"] for row in rows})
        cores = "–".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
        noun = "core" if counts[-1] == 1 else "cores"
        has_devices = any(row["device"] >= 0 for row in rows)
        where = f"the {cores} {noun} nearest to its device" if has_devices else f"{cores} {noun} of its own"
        unseen = f"; {self._num_unseen} ended before echelon saw them" if self._num_unseen else ""
        return f"bound: {ranks}{nodes}, each on {where} (proved{unseen})"


def _some(nodes: list[str]) -> str:
    return nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes ({nodes[0]} …)"


def difference(row: dict[str, Any]) -> str:
    """Return the difference between a rank's binding and the plan; empty if there is none."""
    parts = []
    if row["cpus"] != row["wanted_cpus"] and not row["is_within"]:
        parts.append(f"runs on cores {row['cpus']}, planned {row['wanted_cpus']}")
    if row["device"] != row["wanted_device"]:
        has = f"uses device {row['device']}" if row["device"] >= 0 else "sees no device"
        parts.append(f"{has}, planned {row['wanted_device']}")
    if not parts:
        return ""
    return f"rank {row['rank']} on {row['node']} {' and '.join(parts)}"
