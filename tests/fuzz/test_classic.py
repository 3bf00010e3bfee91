"""The classic cases, in real processes: streams, descriptors, folders, memory, and exit codes that pass through."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fuzz.promise import ERROR, Answer, judge
from tests.run.shell import FOREIGN, SOURCES
from tests.tiers import in_all, some

from echelon import cli
from echelon.environment.errors import HostlistError

PATIENCE_SECONDS = 60.0
BIG = "9" * 5000

# what prints data and starts nothing; `run` and `exec` have tests of their own below
PRINTING = (
    "--help", "--version", "run --help", "exec --help", "plan --machine lumi --gpus 8 --time 1h", "machines lumi",
    "topology", "frameworks", "completion bash", "man", "lint job.sh", "runs", "run --dry-run t.py", "check --list",
    "submit --machine lumi --time 1h --gpus 1 --account p --dry-run t.py",
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "t.py").write_text("print('here')\n")
    (tmp_path / "seven.py").write_text("raise SystemExit(7)\n")
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2\nsrun python t.py\n")
    return tmp_path


def environment(folder: Path, **environ: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return {**kept, "PYTHONPATH": SOURCES, "HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", **environ}


def shell(folder: Path, line: str, **environ: str) -> Answer:
    """Run a line of bash in which `echelon` is ours."""
    command = f'echelon() {{ "{sys.executable}" -m echelon "$@"; }}; {line}'
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(folder, **environ), capture_output=True,
        stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    return Answer(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def refused(folder: Path, line: str, **environ: str) -> str:
    """Return what is said of a line that must be refused with 2."""
    answer = shell(folder, line, **environ)
    assert answer.exit_code == 2, answer
    judge(answer, line)
    return answer.said


@pytest.mark.parametrize("command", some(PRINTING, 3))
def test_streams_that_take_nothing(folder: Path, command: str) -> None:
    """Data that is lost ends the command with 1 and one reason; a reader that is gone needs no words."""
    line = (
        f"echelon {command} >/dev/full; echo $?; echelon {command} >&-; echo $?; "
        f"set -o pipefail; {{ sleep 0.3; echelon {command}; }} | true; echo $? >&2"
    )
    answer = shell(folder, line)
    assert answer.out == "1\n1\n"
    errors = [said for said in answer.said.splitlines() if said.startswith(ERROR)]
    assert errors == [
        f"{ERROR}standard output cannot be written: No space left on device",
        f"{ERROR}standard output cannot be written: Bad file descriptor",
    ]
    assert answer.said.splitlines()[-1] == "1"
    judge(answer, command)


@pytest.mark.parametrize("redirected", ["2>/dev/full", in_all("2>&-"), in_all("2>&- <&-")])
def test_talk_that_is_lost_changes_nothing(folder: Path, redirected: str) -> None:
    """Without standard error the data and the exit codes are the same."""
    plain = shell(folder, "echelon plan --machine lumi --gpus 8; echo $?; echelon plan --gpus ²; echo $?")
    lost = shell(
        folder, f"(echelon plan --machine lumi --gpus 8; echo $?; echelon plan --gpus ²; echo $?) {redirected}"
    )
    assert plain.out.endswith("\n2\n")
    assert lost.out == plain.out
    assert lost.said == ""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("echelon run -n 2 seven.py", 7),
        ("echelon exec sh -c 'exit 9'", 9),
        ("echelon run -- sh -c 'kill -TERM $$'", 143),
        ("echelon run t.py >&- <&-", 0),
        ("echelon run t.py 2>/dev/full", 0),
    ],
)
def test_exit_codes_of_ranks_pass_through(folder: Path, line: str, code: int) -> None:
    """What the ranks say is what the command says, whatever its streams are."""
    assert shell(folder, line).exit_code == code


@pytest.mark.parametrize("command", ["run t.py", "runs", "plan --machine lumi --gpus 8", "lint job.sh", "check --fast"])
def test_folder_that_was_deleted(folder: Path, command: str) -> None:
    """A command that needs the working directory says that it is gone; others work."""
    (folder / "gone").mkdir()
    answer = shell(folder, f"cd gone && rmdir ../gone && echelon {command}")
    judge(answer, command)
    if command.startswith("plan"):
        assert answer.exit_code == 0
    elif command.startswith("run t"):
        assert answer.exit_code == 2
        assert "the working directory cannot be used: No such file or directory" in answer.said


@pytest.mark.parametrize("limit", some([3, 5, 8, 12, 20], 2))
def test_few_descriptors(folder: Path, limit: int) -> None:
    """With too few files to open, a run ends well or says so; it never hangs."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    answer = limited(folder, few)
    if limit > 3:  # below that Python itself does not start
        judge(answer, limit)
    assert answer.exit_code == 0 or answer.said


def limited(folder: Path, limit: Callable[[], None]) -> Answer:
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "run", "t.py"], cwd=folder, env=environment(folder), check=False,
        capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS, preexec_fn=limit,
    )  # fmt: skip
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("columns", some(["0", "1", "-5", "²", "9" * 30], 2))
def test_terminals_without_width(folder: Path, columns: str) -> None:
    """A help is printed at any width that the environment names."""
    answer = shell(folder, "echelon run --help", COLUMNS=columns)
    assert (answer.exit_code, answer.said) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_signs_that_an_encoding_lacks(folder: Path, encoding: str) -> None:
    """Tables and refusals are printed in any encoding; a name keeps its bytes."""
    printed = shell(folder, "echelon plan --machine lumi --gpus 8 --time 1h --why", PYTHONIOENCODING=encoding)
    assert (printed.exit_code, printed.said) == (0, "")
    named = r"echelon submit --machine lumi --time 1h --gpus 1 --account p --dry-run t.py $'\377' | grep -c $'\377'"
    assert shell(folder, named, PYTHONIOENCODING=encoding, LC_ALL="C").out.strip() not in ("", "0")
    assert "there is no script" in refused(folder, r"echelon run $'\377.py'", PYTHONIOENCODING=encoding)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echelon run --nnodes 2 --node-rank 1 --master-addr no.such.host.invalid t.py", "no.such.host.invalid"),
        ("echelon run --nnodes 2 --node-rank 0 --master-addr no.such.host.invalid t.py", "no.such.host.invalid"),
        (f"echelon run --nnodes 2 --node-rank 1 --master-addr {'a' * 70}.invalid t.py", "does not know the rendezvous"),
        ("echelon run $'two\\nlines.py'", "two\\nlines.py"),
        (f"echelon run -n {BIG} t.py", "(5000 characters)"),
        (f"echelon check -n {BIG}", "-n"),
        (f"echelon prove --ranks {BIG} t.py", "--ranks"),
        ("echelon frameworks --import=²", "--import"),
    ],
)
def test_refusals_of_what_starts_processes(folder: Path, line: str, words: str) -> None:
    """An address that nobody knows, a name of two lines, a number of 5,000 digits: refused at once."""
    assert words in refused(folder, line)


SLURM = {
    "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "no.such[1-2].invalid", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}  # fmt: skip


def test_tasks_on_nodes_that_nobody_knows(folder: Path) -> None:
    """A task of a step on nodes without an address is refused; it does not wait for the others."""
    assert "no.such1.invalid" in refused(folder, "echelon run t.py", **SLURM)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(errno.ENOENT, "No such file or directory", "x"), 2, "x: No such file or directory"),
        (OSError(errno.ENOENT, "No such file or directory"), 1, "No such file or directory"),
        (OSError(errno.EMFILE, "Too many open files", "x"), 1, "x: Too many open files"),
        (OSError(errno.EBADF, "Bad file descriptor", 7), 1, "Bad file descriptor"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, "Broken pipe"),  # of a socket: not `… | head`
        (MemoryError(), 1, "there is not enough memory for echelon itself"),
        (RecursionError(), 2, "the input is nested too deeply to be read"),
        (
            UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"),
            2,
            "a text is not UTF-8: 'utf-8' codec can't decode byte 0x78",
        ),
        (
            HostlistError("n[", 1, "a bracket opens that is never closed"),
            2,
            "'n[' is not a Slurm list: a bracket opens",
        ),
    ],
)
def test_foreign_errors_are_translated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int, message: str
) -> None:
    """What the system, Python or a launcher's variables cause anywhere is told by the command, with its exit code."""

    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_run_command", fail)
    assert cli.main(["anything"]) == code
    assert capsys.readouterr().err.startswith(f"{ERROR}{message}")


def test_a_mistake_of_echelon_is_told_in_two_lines(folder: Path) -> None:
    """What nobody foresaw is named with its place, and the whole is shown on demand."""
    code = "from echelon import cli; cli._run_command = lambda words: {}['planted']; raise SystemExit(cli.main())"
    (folder / "planted.py").write_text(code)
    told = shell(folder, f'"{sys.executable}" planted.py')
    assert told.exit_code == 1
    assert "KeyError: 'planted'" in told.said
    assert [line[:8] for line in told.said.splitlines()] == [ERROR[:8], "  hint: "]
    assert "Traceback" in shell(folder, f'ECHELON_TRACEBACK=1 "{sys.executable}" planted.py').said
