"""The pages are executed: commands show what they show, and names, links and numbers are those of the code.

A fenced block is run when its first line is `$ echelon …`, or `$ salloc …`, `$ srun …`, `$ sbatch …`, which run on the
private cluster, as do `echelon plan` and `echelon submit` that name no --machine: there the cluster is known as
"testcluster". Where --container stands, image.sif is an image of the stand-in for Singularity. A fence with a file
name, as in ```python train.py, is a file that all commands of its page find in their folder, beside examples/. A line
of one … stands for any lines. What is not on the cluster is forked from a process that has imported torch (tests/warm),
unless its block shows a traceback. `python -m tests.test_docs [PAGE.md …]` writes what commands show now into the
pages: read the difference as you would read code.
"""

import importlib.util
import itertools
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests import warm
from tests.cluster import Cluster
from tests.container.fixture import SCRIPT, Singularity, require_bubblewrap
from tests.tiers import in_all

import echelon
from echelon.cli import COMMANDS, plan, submit
from echelon.cli import help as helps
from echelon.cli.options import OPTIONS, scan
from echelon.environment import become, frameworks
from echelon.environment.frameworks import RankPlace
from echelon.launch import failure, gathering, hangs, signals, supervisor

ROOT = Path(__file__).parents[1]
SOURCES = Path(echelon.__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MADE_BY_RUNS = {"jobs", *(line.strip("/") for line in (ROOT / ".gitignore").read_text().split())}
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS, SLURMS = ("echelon",), ("salloc", "srun", "sbatch")
FOREIGN = ("ECHELON", "OMP_", "PYTHON", "TORCH", "XDG_CONFIG", "CUDA_VISIBLE", "ROCR_VISIBLE", "HIP_VISIBLE")
SECONDS = 200
ANY_LINES = "…"
BINDING = re.compile(r"^echelon: (?:bound: |note: echelon does not bind the ranks on ).*\n", re.M)
UNTIL_NO_JOB = 'while test "$(squeue --noheader)"; do sleep 0.1; done'  # whoever reads waits too
LEARN = "echelon machines learn --name testcluster >/dev/null 2>&1"
# what differs from run to run, and what stands for it when texts are compared
CHANGING = (
    (r"\d{8}-\d{6}-(\S+?)-[0-9a-f]{4}\b", r"TIME-\1-ID"),
    (r"(?m)· run (\S+?)-[0-9a-f]{4}$", r"· run \1-ID"),
    (r" · [\d.,]+ (samples|steps)/s( · \d+% computing)?( · \d+ of \d+ devices idle)?", ""),  # of a run of 10 s or more
    (r"(?m)^echelon: note: .*(% of the time is waiting for|makes the others wait|steps take .* and took).*\n", ""),
    (r', "measures": \{[^}]*\}', ""),  # a program that ends at once may be seen, or not
    (r"\b(\d+ min )?\d+(\.\d)? s\b", "SECONDS"),
    (r"\bcontinues after step \d+, from (a checkpoint|the memory of the nodes)", "continues"),  # by the pace of steps
    (r"\b(cores|planned) [\d,-]+", r"\1 CORES"),
    (r"\beach on (the )?\d+ cores?\b", r"each on \1CORES"),
    (r"\b([Jj]ob) \d+( to start at \S+)?", r"\1 NUMBER"),
    (r"(?<=threads that stay: )\S+", "NAME"),  # from Python 3.14 on threads have their own names
    (r'("time"|"seconds"|"pid"|"warm_pid"): [\d.e-]+', r"\1: NUMBER"),
    (r"\b[0-9a-f]{32}\b", "DIGEST"),  # bits and last digits are those of a processor
    (r"\bloss \d\.\d{9}\b", "LOSS"),
    (r"\b(equals that of one device to) \d(\.\d)?e-\d+", r"\1 ROUNDING"),
    (r"(?m)^echelon: note: a step of \d+ ranks takes [^\n]*\n", ""),  # where other programs leave it less time
    (r"\n  │ +[~^]+(?=\n)", ""),  # Python 3.10 does not point into the line
)
# lines of which each rank has its own; which is first is chance
OF_SEVERAL_RANKS = (r"(^\[\d+\] [^\n]*\n)+", r"(^\{[^\n]*\"event\": \"(started|exit)\"[^\n]*\n)+")
PYTHON = """#!/bin/sh
OMP_NUM_THREADS=1 exec {python} "$@"
"""
SHIM = """#!{python}
import sys

sys.path.insert(1, {sources!r})
from echelon.cli import main

sys.exit(main())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def first_word(self) -> str:
        words = self.text.removeprefix("$ ").split() if self.text.startswith("$ ") else []
        return next((word for word in words if "=" not in word), "")

    @property
    def is_executed(self) -> bool:
        return self.info == "console" and self.first_word in OURS + SLURMS

    @property
    def is_planned(self) -> bool:
        """Whether the private cluster must be a machine that echelon knows."""
        return any(re.match(r"echelon (plan|submit)\b(?!.*--(machine|help)\b)", line, re.S) for line in self.commands)

    @property
    def needs_cluster(self) -> bool:
        return self.first_word in SLURMS or self.is_planned

    @property
    def shows_interpreter(self) -> bool:
        """Whether it shows what is another way in a fork: where a traceback begins, and where modules are found."""
        return "PYTHONPATH=" in self.text

    @property
    def needs_container(self) -> bool:
        return "--container" in self.text

    @property
    def commands(self) -> list[str]:
        found: list[str] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append(line[2:])
            elif line.startswith("> "):
                found[-1] += "\n" + line[2:]
        return found


def read(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = page.read_text("utf-8")
    return [
        Block(page=page, line=text.count("\n", 0, found.start()) + 1, info=found[1].strip(), text=found[2])
        for found in FENCE.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in read(page)]
EXECUTED = [block for block in BLOCKS if block.is_executed]


# commands that train for long, and show what a cheaper block shows, or a test of the folder of the same name
IN_ALL = (
    "echelon fit --device a100-40",
    "echelon prove -n 4 --steps 10 examples/strategy.py",
    "echelon run -n 1 gpt.py",
    "echelon run -n 1 stages.py",
    "echelon run -n 1 train.py 6 &&",
    "echelon run -n 2 --checkpoint-every 8steps ddp.py",
    "echelon run -n 4 examples/strategy.py",
    "echelon submit --gpus 4 --time 10m --wait train.py",
    "salloc --quiet --nodes=2 --gpus-per-node=2",
)


def _in_its_tier(block: Block) -> Any:
    return in_all(block) if block.commands[0].startswith(IN_ALL) else block


class Desk(NamedTuple):
    """Where commands are run: a folder as after a fresh clone, and an environment."""

    folder: Path
    environ: dict[str, str]


def lay(folder: Path, block: Block, environ: Mapping[str, str]) -> Desk:
    """Put the files of the block's page into a folder, and `echelon` on PATH."""
    for part in ("work", "bin", "home"):
        (folder / part).mkdir()
    program = folder / "bin" / "echelon"
    if not (block.needs_cluster or block.shows_interpreter):
        warm.write_program(program)
    else:
        program.write_text(SHIM.format(python=sys.executable, sources=str(SOURCES)))
        program.chmod(0o755)
    plain = folder / "bin" / "python3"  # beside other tests, two threads of PyTorch wait for each other for minutes
    plain.write_text(PYTHON.format(python=shlex.quote(sys.executable)))
    plain.chmod(0o755)
    (folder / "work" / "examples").symlink_to(ROOT / "examples")
    for file in (other for other in BLOCKS if other.page == block.page and " " in other.info):
        path = folder / "work" / file.info.split()[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, "utf-8")
        path.chmod(0o755 if file.text.startswith("#!") else 0o644)
    if block.needs_container:
        install_containers(folder)
    kept = {name: value for name, value in environ.items() if not name.startswith(FOREIGN)}
    programs = os.pathsep.join([str(folder / "bin"), os.path.dirname(sys.executable), kept.get("PATH", os.defpath)])
    environ = {**kept, "PATH": programs, "HOME": str(folder / "home"), "TZ": "UTC"}
    environ["ECHELON_POOL"] = str(folder / "pool")
    return Desk(folder / "work", {**environ, "ECHELON_CHECK": "off"})  # the cluster's cores and devices are imitated


def install_containers(folder: Path) -> None:
    """Put the stand-in for Singularity on PATH, and an image into the folder."""
    program = folder / "bin" / "singularity"
    _, _, text = SCRIPT.read_text().partition("\n")
    program.write_text(f"#!{sys.executable} -IS\n{text.replace('__file__', repr(str(SCRIPT)))}")
    program.chmod(0o755)
    Singularity(folder / "bin").image(folder / "work" / "image.sif")


def run(block: Block, desk: Desk) -> str:
    """Run the commands of a block in one shell; return what a terminal would show, prompts included."""
    lines = [*([LEARN] if block.is_planned else []), "status=0"]
    for command in block.commands:
        shown = "$ " + command.replace("\n", "\n> ")
        lines += [f"printf '%s\\n' {shlex.quote(shown)}", "(exit $status)", command, "status=$?"]
        if re.match(r"sbatch|echelon submit\b(?!.*--dry-run)", command, re.S):
            lines.append(UNTIL_NO_JOB)
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=desk.folder,
        env=desk.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=SECONDS,
        check=False,
    )
    return as_written(done.stdout.decode("utf-8", "replace"), desk)


def as_written(text: str, desk: Desk) -> str:
    """Put a reader's own folders and machine in place of those of this test."""
    for ours, theirs in (
        (str(ROOT / "examples"), "/home/me/training/examples"),
        (str(desk.folder), "/home/me/training"),
        (sys.executable, "/home/me/venv/bin/python3"),
        (sys.prefix, "/home/me/venv"),
    ):
        text = text.replace(ours, theirs)
    if "SLURM_CONF" in desk.environ and (name := cluster_name(desk.environ["SLURM_CONF"])):
        text = text.replace(name, "testcluster")
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "laptop", text)


def cluster_name(conf: str) -> str:
    """Return the name of the private cluster; empty where this machine's own configuration is named."""
    try:
        found = re.search(r"^ClusterName=(\S+)", Path(conf).read_text("utf-8"), re.MULTILINE)
    except OSError:
        return ""
    return found[1] if found else ""


def compared(text: str, page: Path) -> str:
    """Return a text without what changes from run to run; lines of several ranks in their ranks' order."""
    bound = "".join(BINDING.findall(text))  # it comes before or after what rank 0 says,
    text = BINDING.sub("", text)  # and where cores are few not at all
    text += bound if page.name == "binding.md" else ""
    for pattern, stand_in in CHANGING:
        text = re.sub(pattern, stand_in, text)
    for lines in OF_SEVERAL_RANKS:
        text = re.sub(lines, lambda found: "".join(sorted(found[0].splitlines(True))), text, flags=re.M)
    return text


def shows(written: str, shown: str) -> bool:
    """Tell whether a command shows what is written of it."""
    lines = [r"(?:.*\n)*?" if line == f"{ANY_LINES}\n" else re.escape(line) for line in written.splitlines(True)]
    return re.fullmatch("".join(lines), shown) is not None


def need(block: Block) -> None:
    if "allreduce" in block.text and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if block.needs_container:
        require_bubblewrap()


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    """Give a block the folder and the environment that its commands need."""
    block: Block = request.node.callspec.params["block"]
    need(block)
    return lay(tmp_path, block, request.getfixturevalue("slurm").environ if block.needs_cluster else os.environ)


@pytest.mark.parametrize("block", [_in_its_tier(block) for block in EXECUTED], ids=[block.name for block in EXECUTED])
def test_command_of_a_page_shows_what_the_page_says(block: Block, desk: Desk) -> None:
    """Whoever types a command of the pages sees what stands below it."""
    written, shown = compared(block.text, block.page), compared(run(block, desk), block.page)
    if not shows(written, shown):
        assert shown == written


def lines_of_echelon() -> Iterator[tuple[str, list[str]]]:
    for block in BLOCKS:
        for line in block.text.replace("\\\n", " ").splitlines():
            _, found, rest = line.partition("echelon run ")
            if found and not line.startswith(("usage:", " ", "echelon:")):
                yield block.name, first_command(rest)


def first_command(text: str) -> list[str]:
    """Return the words of a shell line up to the end of its first command."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(itertools.takewhile(lambda word: not set(word) <= set(";&|()<>"), lexer))


@pytest.mark.parametrize(("name", "arguments"), [(name, words) for name, words in lines_of_echelon() if words])
def test_command_line_of_a_page_names_options_that_exist(name: str, arguments: list[str]) -> None:
    """Also what is not executed, such as a batch script, is a command line that echelon reads."""
    assert scan(arguments).rest or "--help" in arguments, name


@pytest.mark.parametrize("name", [name for option in OPTIONS for name in option.names])
def test_option_is_explained(name: str) -> None:
    """Every spelling of every option is named on the page of `echelon run` or on that of torchrun."""
    text = (ROOT / "docs/run.md").read_text("utf-8") + (ROOT / "docs/torchrun.md").read_text("utf-8")
    assert re.search(rf"`{re.escape(name)}[ `=]", text)


@pytest.mark.parametrize("name", become._NAMES)
def test_option_of_exec_is_explained(name: str) -> None:
    """Every option of `echelon exec` is named on its page."""
    assert re.search(rf"`{re.escape(name)}[ `]", (ROOT / "docs/exec.md").read_text("utf-8"))


@pytest.mark.parametrize("name", [name for option in plan.OPTIONS for name in option.names])
def test_option_of_plan_is_in_its_table(name: str) -> None:
    """Every spelling of every option of `echelon plan` has a row."""
    assert re.search(rf"^\|.*`{re.escape(name)}[ `].*\|", page("plan"), re.MULTILINE)


@pytest.mark.parametrize("name", [name for option in submit.SUBMITTING for name in option.names])
def test_option_of_submit_is_in_its_table(name: str) -> None:
    """So has what only `echelon submit` has."""
    assert re.search(rf"^\|.*`{re.escape(name)}[ `].*\|", page("submit"), re.MULTILINE)


def test_tables_name_no_other_options() -> None:
    """No row of the two tables is left over from an option that has gone."""
    for name, options in (("plan", plan.OPTIONS), ("submit", submit.SUBMITTING)):
        table = page(name).partition("\n| option |")[2].partition("\n\n")[0]
        named = re.findall(r"`(-[\w-]+)", "\n".join(row.split("|")[1] for row in table.splitlines() if "`" in row))
        assert set(named) == {name for option in options for name in option.names}


def test_covering_command_exists() -> None:
    """Every `echelon …` of the page on what the guides teach is a command, and every option after it one of its own."""
    for line in re.findall(r"`echelon ([^`]*)`", page("coverage")):
        command, *words = line.split()
        assert command in COMMANDS, line
        known = {name for option in helps.of(command).options for name in option.names}
        for word in words:
            assert not word.startswith("-") or word.partition("=")[0] in known, line


def page(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text("utf-8")


def test_variable_of_a_rank_is_in_the_table() -> None:
    """The table of variables is complete."""
    place = RankPlace(1, 2, 1, 2, 0, 1, "127.0.0.1", 29500)
    given = frameworks.rank_variables(place, run_id="none", workers=["a:1", "b:2"])
    text = (ROOT / "docs/run.md").read_text("utf-8")
    assert [name for name in given if f"`{name}`" not in text] == []


CAUSES = {
    value for name, value in vars(failure).items() if name.isupper() and name[0] != "_" and isinstance(value, str)
}


@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_cause_of_a_failure_is_explained(cause: str) -> None:
    """Whatever a report may name as the cause can be looked up."""
    assert f"`{cause}" in (ROOT / "docs/failures.md").read_text("utf-8")


@pytest.mark.parametrize(
    "name",
    ["FAILURE_GRACE_SECONDS", "INTERRUPT_SECONDS", "TERMINATE_SECONDS", "GATHER_SECONDS", "LAST_CALL_SECONDS",
     "ANSWER_SECONDS"],
)  # fmt: skip
def test_waiting_time_is_the_one_of_the_code(name: str) -> None:
    """The page says how long the supervisor waits for what, in its own numbers."""
    row = next(line for line in (ROOT / "docs/run.md").read_text("utf-8").splitlines() if f"`{name}`" in line)
    assert f"{next(getattr(one, name) for one in (supervisor, signals, gathering) if hasattr(one, name)):g} s" in row


def test_patience_with_the_last_ranks_is_the_one_of_the_code() -> None:
    """The page says after how long a rank that does not end is named."""
    text = (ROOT / "docs/failures.md").read_text("utf-8")
    assert f"ranks ended {hangs.PATIENCE_SECONDS:.0f} s ago; still runs: rank" in text


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_link_of_a_page_leads_somewhere(page: Path) -> None:
    """Every relative link names a file, and every anchor a heading in it."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def looks_like_ours(word: str) -> bool:
    """Tell whether a word in backticks can only be a path of the repository."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", word):
        return False
    top, _, rest = word.partition("/")
    if top in MADE_BY_RUNS:
        return False
    return bool(rest) and any((folder / top).is_dir() for folder in (ROOT, SOURCES / "echelon"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_file_that_a_page_names_exists(page: Path) -> None:
    """A path in backticks that begins with a folder of the repository, or with a room, is there."""
    words = filter(looks_like_ours, re.findall(r"`([^`\n]+)`", prose(page)))
    assert [word for word in words if not any((top / word).exists() for top in (ROOT, SOURCES / "echelon"))] == []


def rewrite(names: list[str]) -> None:
    """Write what commands show now into their pages, where that has changed: into all, or those that are named."""
    with Cluster() as cluster:
        for block in (one for one in EXECUTED if not names or one.page.name in names):
            with tempfile.TemporaryDirectory() as folder:
                environ = cluster.environ if block.needs_cluster else os.environ
                shown = run(block, lay(Path(folder), block, environ))
            if shows(compared(block.text, block.page), compared(shown, block.page)):
                continue
            print(block.name)
            fence = "```" + block.info + "\n"
            text = block.page.read_text("utf-8")
            block.page.write_text(text.replace(fence + block.text, fence + shown, 1), "utf-8")


if __name__ == "__main__":
    rewrite(sys.argv[1:])
