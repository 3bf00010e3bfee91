"""Folders of benchmarks that are written file by file, so that their truth is known."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.monitor.test_report import Generated

from echelon.orders import bench
from echelon.trials import efficiency, measured, records
from echelon.trials.question import STRONG, Question, Size
from echelon.trials.records import BenchmarkStart

QUESTION = Question(
    script="train.py", arguments=("--epochs", "3"), is_module=False, is_own=False, sizes=(), mode=STRONG, num_steps=100,
    warm_up=40, num_repeats=1, options=("--scale", "data"), timeout="",
)  # fmt: skip
PHASES = {"import": 3.0, "start": 1.0, "before the first step": 2.0, "end": 0.5}


class Folder:
    """The folder of a benchmark."""

    def __init__(self, path: Path, question: Question = QUESTION) -> None:
        self.path = path
        self.question = question
        self.starts: list[BenchmarkStart] = []

    def run(
        self, num_ranks: int, seconds: Sequence[float], *, repeat: int = 1, num_nodes: int = 1, devices: int = 0,
        cores: int = 64, exit_code: int = 0, cause: str = "", load: "float | None" = None,
        measures: "dict[str, float] | None" = None,
    ) -> BenchmarkStart:  # fmt: skip
        """Write a run whose steps after the first took these seconds."""
        name = BenchmarkStart.name_of(num_ranks, repeat)
        (self.path / name).mkdir(parents=True)
        (self.path / name / bench.SECONDS_FILE).write_text("".join(f"{each:.9f}\n" for each in seconds))
        run = Generated(self.path / name / "run")
        plan = {"format": 1, "num_nodes": num_nodes, "scale_options": {"how": "data"}, "environ": []}
        run.write("plan.json", plan)
        run.event("supervisor")
        for node in range(num_nodes):
            run.event("agent", agent_index=node, node=f"n{node}", devices=devices, cores=cores)
        run.event("attempt", PHASES["start"], number=0, ranks=num_ranks)
        run.event("imported", PHASES["import"], node="n0", seconds=PHASES["import"])
        run.event("started", rank=0)
        first = run.now + PHASES["before the first step"]
        run.now = first + sum(seconds)
        told = {"steps": len(seconds) + 1, "first_step": first, "last_step": run.now, "step_times": []}
        told.update({"measures": measures} if measures else {})
        run.event("exit", PHASES["end"], rank=0, status=exit_code, **told)
        run.event("end", exit_code=exit_code, cause=cause)
        report = {"format": 1, "exit_code": exit_code, "cause": cause}
        if load is not None:
            report["load"] = {"n0": [{"device": 0, "mean": load, "most": 100, "looks": 9}]}
        run.write("report.json", report)
        start = BenchmarkStart(num_ranks=num_ranks, repeat=repeat, folder=name, run=f"{name}/run")
        self.starts.append(start)
        return start

    def rows(self) -> tuple[efficiency.SizeRow, ...]:
        """Return the sizes as the benchmark reads them."""
        self.write()
        question, starts = records.read(str(self.path))
        return efficiency.rows(question, [measured.read(str(self.path), start, question) for start in starts])

    def write(self) -> None:
        numbers = sorted({start.num_ranks for start in self.starts})
        sizes = tuple(Size(num_ranks=number, num_nodes=1) for number in numbers)
        self.question = replace(self.question, sizes=sizes)
        records.write(str(self.path), self.question, self.starts)

    def edit(self, **fields: object) -> None:
        """Change fields of bench.json."""
        path = self.path / records.NAME
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
