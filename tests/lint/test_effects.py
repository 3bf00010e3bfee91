"""What the mistakes do on a real Slurm: each script runs as it is and repaired, and something else is seen."""

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster
from tests.cluster.fixture import require_tools
from tests.lint.linting import MACHINES, TODAY, codes, texts
from tests.lint.test_fix import FIXABLE
from tests.lint.test_fix import repaired as fixed
from tests.tiers import some

from echelon.lint.pages import all_pages
from echelon.lint.repair import repair
from echelon.lint.run import lint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
TABLE: dict[str, Any] = tomllib.loads((FOLDER / "effects.toml").read_text("utf-8"))
HEAD = TABLE.pop("head")
ROWS: dict[str, dict[str, Any]] = TABLE
SHOWN = some(list(ROWS), 6)
"""Those whose jobs are submitted."""
PAGES = all_pages()
# rules about jobs whose repair has no effect that is seen here: what --fix writes runs all the same
REPAIRED = some([code for code in FIXABLE if code not in ROWS and code[:4] < "ECH5"], 6)
STAND_INS = tomllib.loads((FOLDER / "effects" / "bin.toml").read_text("utf-8"))
PROGRAM = "import report\nreport.write()\n"
DISTRIBUTED = """\
import report
report.write()


def train():
    import torch
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
"""


def with_mistake(row: dict[str, Any]) -> dict[str, str]:
    """Return the files of a row, with its mistake."""
    return _files(row, is_broken=True)


def _files(row: dict[str, Any], *, is_broken: bool) -> dict[str, str]:
    script = ("" if row.get("whole") else HEAD) + row["script"].removeprefix("\n")
    program = row.get("program", DISTRIBUTED if "srun python" in script or "torchrun" in script else PROGRAM)
    if is_broken and "break" in row:
        old, new = row["break"]
        assert script.count(old) == 1, (old, script)
        script = script.replace(old, new)
    if is_broken and "break_program" in row:
        program = program.replace(*row["break_program"])
    settings = {"ds_config.json": row["settings"]} if "settings" in row else {}
    return {"job.sh": script, "train.py": program, **settings}


def repaired(row: dict[str, Any]) -> dict[str, str]:
    """Return the files without the mistake: as they are in the table, or as --fix leaves them."""
    if "break" in row or "break_program" in row:
        return _files(row, is_broken=False)
    given = {name: text.encode() for name, text in with_mistake(row).items()}
    found = repair(given, lambda sources: lint(sources, today=TODAY, machine=machine(row)))
    return {name: source.decode() for name, source in found.sources.items()}


def machine(row: dict[str, Any]) -> Any:
    return None if row.get("on_cores") else MACHINES["lumi"]


@dataclass
class Job:
    """One job of a row."""

    folder: Path
    cluster: Cluster
    refused: str = ""
    numbers: list[int] = field(default_factory=list)

    def seen(self) -> dict[str, Any]:
        """Return all that is seen of it."""
        if self.refused:
            return {"refused": self.refused}
        jobs = [self.cluster.job(number) for number in self.numbers]
        worst = max(jobs, key=lambda job: job["JobState"] != "COMPLETED")
        ranks = [json.loads(path.read_text()) for path in self.folder.glob("seen/*.json")]
        variables = {name for rank in ranks for name in rank["variables"]}
        amounts = dict(part.split("=") for part in worst["TRES"].split(","))
        first = min((rank["node"] for rank in ranks), default="")
        return {
            "refused": "",
            "state": worst["JobState"],
            "exit": int(worst["ExitCode"].partition(":")[0]),
            "ranks": len(ranks),
            "on_each": sorted(Counter(rank["node"] for rank in ranks).values()),
            "devices": max((rank["devices"] for rank in ranks), default=0),
            "cores": len({core for rank in ranks for core in rank["cores"]}),
            "args": ranks[0]["args"] if ranks else [],
            "values": {name: len({rank["variables"].get(name) for rank in ranks}) for name in variables},
            "memory_gib": round(float(amounts["mem"].rstrip("MGT"))),
            "num_cores": int(amounts["cpu"]),
            "threads": sum(
                int(rank["variables"].get("OMP_NUM_THREADS", 0)) for rank in ranks if rank["node"] == first
            ),
            "left": sorted(path.name for path in self.folder.iterdir() if path.suffix in (".csv", ".d")),
        }  # fmt: skip


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Job]]:
    """Submit every script as it is and repaired, all at once, and wait until none is left."""
    require_tools()
    folder = tmp_path_factory.mktemp("effects")
    (folder / "bin").mkdir()
    for name, text in STAND_INS.items():
        (folder / "bin" / name).write_text(text.removeprefix("\n"))
        (folder / "bin" / name).chmod(0o755)
    (folder / "bin" / "apptainer").symlink_to("singularity")
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')  # a link would lose its packages
    (folder / "bin" / "python").chmod(0o755)
    lumi, roihu = Cluster.like(MACHINES["lumi"]), Cluster.like(MACHINES["roihu"], num_live_nodes=1)
    cores = Cluster(num_nodes=1, task_plugin="task/affinity")
    with lumi, roihu, cores:
        submitted = {}
        for code, row in ((code, ROWS[code]) for code in SHOWN):
            cluster = cores if row.get("on_cores") else lumi
            submitted[code, "bad"] = _submit(folder / f"{code}-bad", with_mistake(row), cluster, row)
            submitted[code, "good"] = _submit(folder / f"{code}-good", repaired(row), cluster, row)
        for code in REPAIRED:
            cluster = roihu if PAGES[code].machine == "roihu" else lumi
            submitted[code, "fixed"] = _submit(folder / f"{code}-fixed", _fixed_example(code), cluster, {})
        for cluster in (lumi, roihu, cores):
            cluster.wait(
                lambda cluster=cluster: not cluster.run("squeue", "--noheader").stdout, "all jobs end", timeout=240
            )
        yield submitted


def _fixed_example(code: str) -> dict[str, str]:
    """Return the files of a page's bad example as --fix leaves them."""
    files = {name: source.decode() for name, source in fixed(code).sources.items()}
    script = files["job.sh"]
    if "#SBATCH" not in script:
        script = f"{HEAD}{script}srun python train.py\n"
    elif "--partition" not in script:
        script = HEAD + script.partition("\n")[2]
    return {"job.sh": script, "train.py": PROGRAM}


def _submit(folder: Path, files: dict[str, str], cluster: Cluster, row: dict[str, Any]) -> Job:
    job = Job(folder=folder, cluster=cluster)
    (job.folder / "seen").mkdir(parents=True)
    for name, text in files.items():
        (job.folder / name).write_bytes(text.encode())
    for name in ("report.py", "meet.py"):
        shutil.copy(FOLDER / "effects" / name, job.folder)
    path = f"{folder.parent / 'bin'}:{cluster.environ['PATH']}"
    environ = {**cluster.environ, "PATH": path, "SEEN": str(job.folder / "seen"), "PYTHONDONTWRITEBYTECODE": "1"}
    for _ in range(2 if row.get("twice") else 1):
        done = cluster.run("sbatch", "--parsable", "job.sh", env=environ, cwd=job.folder, check=False)
        if done.returncode:
            job.refused = done.stderr
        else:
            job.numbers.append(int(done.stdout))
    return job


def test_most_rules_about_jobs_have_an_effect() -> None:
    """At least 40 rules are shown on a real Slurm."""
    assert len(ROWS) >= 40


@pytest.mark.parametrize("code", ROWS)
def test_rule_finds_what_has_the_effect(code: str) -> None:
    """The linter finds the mistake in exactly that script, and not in the repaired one."""
    row = ROWS[code]
    name = machine(row).name if machine(row) else ""
    assert code in codes(texts(with_mistake(row), machine=name))
    assert code not in codes(texts(repaired(row), machine=name))


@pytest.mark.slurm
@pytest.mark.parametrize("code", SHOWN)
def test_effect(jobs: dict[tuple[str, str], Job], code: str) -> None:
    """The script does what its row says, and the repaired one what was meant."""
    row = ROWS[code]
    good = row.get("good", {"refused": ""})
    for which, wanted in (("bad", row["bad"]), ("good", good)):
        job = jobs[code, which]
        seen = job.seen()
        log = "".join(path.read_text(errors="replace") for path in job.folder.glob("slurm-*.out"))
        for what, value in wanted.items():
            if what == "refused":
                assert value in seen["refused"] and bool(value) == bool(seen["refused"]), (which, seen)
            elif what == "values":
                assert {name: seen["values"].get(name, 0) for name in value} == value, (which, seen, log)
            else:
                assert seen[what] == value, (which, what, seen, log)
    assert row["bad"] != good


@pytest.mark.slurm
@pytest.mark.parametrize("code", REPAIRED)
def test_repaired_example_runs(jobs: dict[tuple[str, str], Job], code: str) -> None:
    """What --fix makes of a page's bad example is taken by Slurm, and its ranks run."""
    seen = jobs[code, "fixed"].seen()
    assert seen.get("state") == "COMPLETED" and seen["ranks"] >= 1, seen
