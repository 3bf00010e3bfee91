"""What the user sees of a run, what stands in its logs, and that no byte is lost on the way."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.tiers import product, some

from .shell import Shell, wait_until

LAUNCHES = ("warm", "exec")
END = re.compile(r"echelon: (\d+) ranks? · \d+\.\d s · exit (\d+) · run (\S+)\n")
SPEAKS = """
import os, sys
print("out", os.environ["RANK"])
print("err", os.environ["RANK"], file=sys.stderr)
"""
MEGABYTES = 50
MOST_MEMORY_KIB = 100 * 1024


def _read_until(descriptor: int, wanted: bytes, *, seconds: float = 10.0) -> bytes:
    """Read until these bytes have come, however few come at a time."""
    heard = b""
    deadline = time.monotonic() + seconds
    while wanted not in heard:
        left = deadline - time.monotonic()
        assert left > 0, f"{wanted!r} did not come within {seconds:g} s, only {heard!r}"
        if select.select([descriptor], [], [], left)[0]:
            data = os.read(descriptor, 1 << 16)
            assert data, f"the output ended before {wanted!r} came: {heard!r}"
            heard += data
    return heard


@product(stream=["stdout", "stderr"], launch=LAUNCHES)
def test_rank_0_is_live(shell: Shell, stream: str, launch: str) -> None:
    """A line is on the console while the script goes on, without a flush in the script."""
    shell.script(f"import sys, time\nprint('a line', file=sys.{stream})\ntime.sleep(60)\n")
    with shell.start("--launch", launch, "train.py") as process:
        source = process.stdout if stream == "stdout" else process.stderr
        assert source is not None
        _read_until(source.fileno(), b"a line\n")
        assert process.poll() is None
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("launch", some(LAUNCHES, 2, 1))
def test_progress_bar_is_live(shell: Shell, launch: str) -> None:
    """A bar that rewrites its line with a carriage return moves while the line has no end yet."""
    bar = "for n in (10, 20): sys.stderr.write(f'\\r{n}%'); sys.stderr.flush()\n"
    shell.script(f"import sys, time\n{bar}time.sleep(60)\n")
    with shell.start("--launch", launch, "train.py") as process:
        assert process.stderr is not None
        assert b"\r10%\r20%" in _read_until(process.stderr.fileno(), b"20%")
        process.terminate()
        process.wait(10)


def test_progress_bars_of_several_ranks_are_live(shell: Shell) -> None:
    """With several ranks shown, a bar moves too: a carriage return ends a piece that may be shown."""
    bar = "for n in (10, 20): sys.stderr.write(f'\\r{n}%\\r'); sys.stderr.flush()\n"
    shell.script(f"import sys, time\n{bar}time.sleep(60)\n")
    with shell.start("-n", "2", "--show", "all", "train.py") as process:
        assert process.stderr is not None
        heard = _read_until(process.stderr.fileno(), b"[1] 20%")
        assert b"20%" in heard
        process.terminate()
        process.wait(10)


def test_other_ranks_are_in_their_logs_only(shell: Shell) -> None:
    """Rank 0 is on the console, without a prefix; every rank has a log with both of its streams."""
    shell.script(SPEAKS)
    done = shell.fork("-n", "3", "train.py")
    assert done.stdout == b"out 0\n"
    assert END.fullmatch(done.said.removeprefix("err 0\n"))
    for rank in range(3):
        assert sorted(shell.log(rank).splitlines()) == [b"err %d" % rank, b"out %d" % rank]


SHOWN = {
    "none": ([], ""),
    "0": ([0], ""),
    "2": ([2], ""),
    "0,3": ([0, 3], "[{}] "),
    "1-2": ([1, 2], "[{}] "),
    "0,2-3": ([0, 2, 3], "[{}] "),
    "all": ([0, 1, 2, 3], "[{}] "),
}


@pytest.mark.parametrize("option", some(list(SHOWN), 3))
def test_shown_ranks_are_named_when_there_are_several(shell: Shell, option: str) -> None:
    """--show chooses the ranks; a prefix says which one, unless only one is shown."""
    shell.script(SPEAKS)
    done = shell.fork("-n", "4", "--show", option, "train.py")
    ranks, prefix = SHOWN[option]
    assert sorted(done.stdout.decode().splitlines()) == [prefix.format(rank) + f"out {rank}" for rank in ranks]
    *lines, last = done.said.splitlines(keepends=True)
    assert sorted(lines) == [prefix.format(rank) + f"err {rank}\n" for rank in ranks]
    assert END.fullmatch(last)
    assert len(shell.files("echelon-runs/*/logs/attempt-0/rank-*.log")) == 4


def test_only_rank_is_not_named_when_all_are_shown(shell: Shell) -> None:
    """--show all with one rank shows one rank, which needs no name."""
    shell.script(SPEAKS)
    assert shell.fork("-n", "1", "--show", "all", "train.py").stdout == b"out 0\n"


def test_streams_are_kept_apart(shell: Shell) -> None:
    """Standard output is the script's data and nothing else; all talk is on standard error."""
    shell.script(SPEAKS)
    done = shell.run("-n", "2", "--show", "all", "train.py")
    assert sorted(done.stdout.splitlines()) == [b"[0] out 0", b"[1] out 1"]
    assert b"out" not in done.stderr.replace(b"rank", b"").split(b"echelon:")[0]
    empty = shell.run("-n", "2", "--rdzv-backend", "c10d", "--show", "none", "train.py")
    assert empty.stdout == b""


ODD = {
    "no newline at the end": b"a line\nand a part",
    "carriage returns": b"\r 10%\r 20%\rdone\n",
    "nothing but newlines": b"\n\n\n",
    "every byte": bytes(range(256)) * 40,
    "not UTF-8": b"caf\xe9 \xff\xfe \xc3\n",
    "colours": b"\x1b[31mred\x1b[0m\n",
    "a letter in two writes": "größe 🙂\n".encode(),
    "a long line": b"x" * 3_000_000 + b"\n",
}
WRITES = """
import os, sys, time
data = open("data", "rb").read()
step = int(sys.argv[1])
for place in range(0, len(data), step):
    os.write(int(sys.argv[2]), data[place:place + step])
"""


@product(kind=ODD, descriptor=[1, 2])
def test_bytes_of_a_rank_arrive_as_they_are(shell: Shell, kind: str, descriptor: int) -> None:
    """Console and log have the very bytes that the script wrote, whatever they are."""
    data = ODD[kind]
    (shell.folder / "data").write_bytes(data)
    shell.script(WRITES)
    done = shell.fork("train.py", str(1 if len(data) < 100 else 1 << 20), str(descriptor))
    assert done.exit_code == 0
    assert shell.log(0) == data
    if descriptor == 1:
        assert done.stdout == data
    else:
        assert done.stderr.startswith(data)
        rest = done.stderr.removeprefix(data).decode()
        assert END.fullmatch(rest if data.endswith(b"\n") else rest.removeprefix("\n"))


@pytest.mark.parametrize("kind", some([kind for kind in ODD if kind != "carriage returns"], 3))
def test_bytes_of_named_ranks_arrive_as_they_are(shell: Shell, kind: str) -> None:
    """With prefixes, each line is still the very bytes; a last line without an end gets one."""
    data = ODD[kind]
    (shell.folder / "data").write_bytes(data)
    shell.script(WRITES)
    done = shell.fork("-n", "2", "--show", "all", "train.py", str(1 if len(data) < 100 else 1 << 20), "1")
    lines = data.removesuffix(b"\n").split(b"\n")
    for rank in range(2):
        prefix = b"[%d] " % rank
        shown = [line.removeprefix(prefix) for line in done.stdout.split(b"\n") if line.startswith(prefix)]
        assert shown == lines
        assert shell.log(rank) == data


def test_lines_of_several_ranks_are_never_torn(shell: Shell) -> None:
    """Ranks that write letter by letter at the same time give whole lines, each from one rank."""
    shell.script(
        "import os\nfor n in range(200):\n  for c in f'{os.environ[\"RANK\"]} says {n}\\n': os.write(1, c.encode())\n"
    )
    done = shell.fork("-n", "4", "--show", "all", "train.py")
    expected = [f"[{rank}] {rank} says {n}" for rank in range(4) for n in range(200)]
    assert sorted(done.stdout.decode().splitlines()) == sorted(expected)


def test_log_can_be_read_while_the_run_goes_on(shell: Shell) -> None:
    """`tail -f` of any rank's log shows what it wrote within a few seconds."""
    shell.script(SPEAKS + "import time; sys.stdout.flush(); time.sleep(60)")
    with shell.start("-n", "2", "train.py") as process:
        wait_until(lambda: all(b"out" in path.read_bytes() for path in _logs(shell, 2)), seconds=60)
        process.terminate()
        process.wait(10)


def _logs(shell: Shell, count: int) -> list[Path]:
    paths = shell.files("echelon-runs/*/logs/attempt-0/rank-*.log")
    return paths if len(paths) == count else [shell.script("", "not-yet")]


FLOOD = """
import os, sys
rank = os.environ["RANK"]
line = "x" * 90
for n in range(int(sys.argv[1])):
    sys.stdout.write(f"{rank} {n:07d} {line}\\n")
"""


def _peak_memory_kib(pid: int) -> int:
    """Return the peak of a living process; ru_maxrss would count what its parent was before the exec."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0])


def test_flood_of_output_arrives_complete_in_bounded_memory(shell: Shell) -> None:
    """50 MB from each of two ranks reach a slow console and the logs; nobody keeps them in memory."""
    lines = MEGABYTES * 1_000_000 // 101
    shell.script(FLOOD)
    seen = {0: 0, 1: 0}
    most = 0
    with shell.start("-n", "2", "--show", "all", "train.py", str(lines), stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        time.sleep(1.0)  # nobody reads at first: the ranks have to wait, not the supervisor to keep
        for line in process.stdout:
            rank = line[1] - ord("0")
            assert line[4:14] == b"%d %07d " % (rank, seen[rank]), line
            seen[rank] += 1
            if seen[rank] % 100_000 == 0:
                most = max(most, _peak_memory_kib(process.pid))
        process.wait(30)
    assert process.returncode == 0
    assert seen == {0: lines, 1: lines}
    assert 0 < most < MOST_MEMORY_KIB
    for rank in range(2):
        assert len(shell.log(rank)) == lines * 101


@pytest.mark.parametrize("launch", some(LAUNCHES, 2))
def test_reader_that_goes_away_ends_the_run(shell: Shell, launch: str) -> None:
    """`echelon run … | head -1` ends quietly, as every program in a pipe does, and leaves nothing behind."""
    shell.script("n = 0\nwhile True:\n  n += 1\n  print('line', n, flush=True)\n")
    with shell.start("-n", "2", "--launch", launch, "train.py") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line 1\n"
        process.stdout.close()
        assert process.wait(5) in (128 + signal.SIGPIPE, -signal.SIGPIPE)
        said = process.stderr.read().decode()
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


def test_full_disk_behind_the_console_ends_the_run(shell: Shell) -> None:
    """Output that cannot be written is an error that is named, not one that is swallowed."""
    shell.script("print('lost')")
    with open("/dev/full", "wb") as full, shell.start("train.py", stdout=full.fileno()) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert b"No space left on device" in said
    assert b"Traceback" not in said


def test_closed_standard_error_does_not_end_the_run(shell: Shell) -> None:
    """`2>&-` silences the talk and nothing else."""
    shell.script(SPEAKS)
    line = f'exec "{sys.executable}" -m echelon run -n 2 train.py 2>&-'
    done = subprocess.run(["bash", "-c", line], cwd=shell.folder, env=shell.environ, stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"out 0\n")


def test_standard_input_is_empty_for_the_ranks(shell: Shell) -> None:
    """A rank that reads gets the end of the file at once; what was typed stays for the shell."""
    shell.script("import sys; print(repr(sys.stdin.read()))")
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "run", "-n", "2", "train.py"],
        cwd=shell.folder, env=shell.environ, input=b"typed\n", capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, b"''\n")


@pytest.mark.parametrize(("code", "ranks", "word"), [(0, 1, "1"), (0, 3, "3"), (5, 2, "2")])
def test_run_ends_with_one_line(shell: Shell, code: int, ranks: int, word: str) -> None:
    """The last line says how many ranks, how long, which exit code, and what the run is called."""
    shell.script(f"import time; time.sleep(0.3); raise SystemExit({code})")
    done = shell.fork("-n", str(ranks), "train.py")
    match = END.fullmatch(done.said.splitlines(keepends=True)[-1])
    assert match is not None, done.said
    assert match.group(1, 2) == (word, str(code))
    (folder,) = (shell.folder / "echelon-runs").glob(f"*-{match.group(3)}")
    assert sorted(path.name for path in folder.glob("logs/attempt-0/*.log")) == [
        f"rank-{rank}.log" for rank in range(ranks)
    ]
    assert done.said.count("echelon: ") == (1 if code == 0 else 2)
    assert f"{ranks} rank{'s' if ranks > 1 else ''} ·" in done.said


FAILS = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError('wrong')
time.sleep(60)
"""


def test_failure_is_told_once_and_without_colours(shell: Shell) -> None:
    """Not on a terminal there is no escape sequence, and one traceback per stream, not one per rank."""
    shell.script(FAILS)
    done = shell.fork("-n", "4", "train.py")
    (log,) = shell.files("echelon-runs/*/logs/attempt-0/rank-1.log")
    node = os.uname().nodename
    assert done.said.splitlines()[:-1] == [
        f"echelon: rank 1 on {node} (local rank 1) failed first: error in the script",
        "  │ Traceback (most recent call last):",
        f'  │   File "{shell.folder}/train.py", line 4, in <module>',
        "  │     raise ValueError('wrong')",
        "  │ ValueError: wrong",
        f"  log: {log.relative_to(shell.folder)}",
    ]
    assert "\x1b" not in done.said


class Terminal:
    """A terminal of 80 columns whose whole output is kept."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        self.heard = b""

    def follow(self, process: subprocess.Popen[bytes]) -> None:
        """Read until the process has ended and everything has come."""
        deadline = time.monotonic() + 30
        os.close(self.theirs)
        while time.monotonic() < deadline:
            if select.select([self.ours], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # EIO: nobody holds the other end any more
                    self.heard += os.read(self.ours, 1 << 16)
                    continue
                break
        process.wait(10)
        os.close(self.ours)

    @property
    def screen(self) -> list[str]:
        """Return the lines that stand there at the end, the erased ones gone."""
        lines = [""]
        for piece in re.split(r"(\r\n|\n|\r|\x1b\[2K)", self.heard.decode()):
            if piece.endswith("\n"):
                lines.append("")
            elif piece == "\x1b[2K":
                lines[-1] = ""
            elif piece != "\r":
                lines[-1] += piece
        return lines


@pytest.mark.parametrize("code", [0, 3])
def test_progress_line_vanishes_on_a_terminal(shell: Shell, code: int) -> None:
    """While nodes come and modules are imported one line says so; at the end it is gone."""
    slow = shell.script("import time; time.sleep(0.5)\n", "site-packages/slow.py")
    shell.environ["PYTHONPATH"] += f":{slow.parent}"
    # rank 1 does not fail: if it did so before rank 0 has printed, that would be ended without a word
    end = f"import os\nraise SystemExit({code} if os.environ['RANK'] == '0' else 0)\n"
    shell.script(f"import slow\nprint('from the script')\n{end}")
    terminal = Terminal()
    with shell.start("-n", "2", "train.py", stdout=terminal.theirs, stderr=terminal.theirs) as process:
        terminal.follow(process)
    shown = terminal.heard.decode()
    assert "importing" in shown
    assert "slow" in shown
    assert "\x1b[2K" in shown
    lines = [line for line in terminal.screen if line]
    assert lines[0] == "from the script"
    assert END.fullmatch(lines[-1] + "\n")
    assert not [line for line in lines if "importing" in line or "starting" in line or "ranks started" in line]
    assert process.returncode == code


def test_progress_line_is_not_drawn_into_a_file(shell: Shell) -> None:
    """Where standard error is a file there is no progress line and no escape sequence."""
    slow = shell.script("import time; time.sleep(0.5)\n", "site-packages/slow.py")
    shell.environ["PYTHONPATH"] += f":{slow.parent}"
    shell.script("import slow\n")
    done = shell.fork("-n", "2", "train.py")
    assert END.fullmatch(done.said)


def test_script_sees_no_terminal_even_when_we_do(shell: Shell) -> None:
    """A rank's streams are pipes in every case, so bars and colours decide alike on a terminal and in a batch job."""
    shell.script("import sys; print(sys.stdout.isatty(), sys.stderr.isatty(), sys.stdin.isatty())")
    terminal = Terminal()
    with shell.start("train.py", stdout=terminal.theirs, stderr=terminal.theirs) as process:
        terminal.follow(process)
    assert "False False False" in terminal.screen
