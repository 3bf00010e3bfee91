"""How a run ends: its exit code, the end of all other ranks, the time limit, and starting again."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.tiers import product, some

from .shell import Shell, wait_until

LAUNCHES = ("warm", "exec")
FAILURE_SECONDS = 2.0  # within which every rank has ended after the first failure
MARGIN_SECONDS = 3.0  # other tests share the cores, and one pause of a second is nothing there

CODES = {
    "": 0,
    "sys.exit()": 0,
    "sys.exit(0)": 0,
    "sys.exit(7)": 7,
    "sys.exit(255)": 255,
    "sys.exit(-1)": 255,
    "sys.exit(256 + 3)": 3,
    "sys.exit('in words')": 1,
    "sys.exit(True)": 1,
    "sys.exit(2.5)": 1,
    "os._exit(9)": 9,
    "raise ValueError('wrong')": 1,
    "raise KeyboardInterrupt": 130,
    "import no_such_module": 1,
    "os.kill(os.getpid(), signal.SIGKILL)": 137,
    "os.kill(os.getpid(), signal.SIGTERM)": 143,
    "os.kill(os.getpid(), signal.SIGALRM)": 142,
    "os.abort()": 134,
    "ctypes.string_at(0)": 139,
    "threading.Thread(target=sys.exit, args=(4,)).start()": 0,
    "atexit.register(os._exit, 6)": 6,
}


def _shell_code(code: int) -> int:
    """Return the exit code that a shell shows for it."""
    return 128 - code if code < 0 else code


@product(statement=some(list(CODES), 3), launch=LAUNCHES)
def test_exit_code_is_the_scripts_own(shell: Shell, statement: str, launch: str) -> None:
    """A run ends with the code that the script alone would have ended with, as a shell shows it."""
    shell.script(f"import atexit, ctypes, os, signal, sys, threading\n{statement}\n")
    done = shell.fork("--launch", launch, "train.py")
    alone = subprocess.run([sys.executable, "train.py"], cwd=shell.folder, capture_output=True, check=False, timeout=60)
    assert done.exit_code == CODES[statement] == _shell_code(alone.returncode)
    assert f"exit {CODES[statement]} · run train-" in done.said
    report = json.loads(shell.files("echelon-runs/*/report.json")[0].read_text())
    assert report["exit_code"] == CODES[statement]


@pytest.mark.parametrize("line", some(["exit 9", "exit 0", "kill -9 $$", "kill -TERM $$"], 2))
def test_exit_code_of_a_program_is_its_own(shell: Shell, line: str) -> None:
    """What is not Python is treated alike."""
    alone = subprocess.run(["bash", "-c", line], check=False)
    assert shell.fork("-n", "2", "--", "bash", "-c", line).exit_code == _shell_code(alone.returncode)


def test_program_that_cannot_be_executed_is_named(shell: Shell) -> None:
    """A program whose interpreter is missing ends the run with the reason, and 126 or 127 as in a shell."""
    program = shell.script("#!/no/such/interpreter\n", "program")
    program.chmod(0o755)
    done = shell.fork("-n", "2", "--", "./program")
    assert done.exit_code in (126, 127)
    assert "cannot be started: ./program: No such file or directory" in done.said


FIRST = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(40 + rank))
open(f"ready-{rank}", "w").close()
while not all(os.path.exists(f"ready-{other}") for other in range(4)):
    time.sleep(0.01)
if rank == 2:
    sys.exit(5)
time.sleep(60)
"""


@pytest.mark.parametrize("launch", some(LAUNCHES, 2, 1))
def test_first_failure_wins(shell: Shell, launch: str) -> None:
    """The code is that of the rank that failed first, whatever the others say when they are stopped."""
    shell.script(FIRST)
    done = shell.fork("-n", "4", "--launch", launch, "train.py")
    assert done.exit_code == 5
    assert "rank 2 on" in done.said
    assert done.said.count("failed first") == 1
    report = json.loads(shell.files("echelon-runs/*/report.json")[0].read_text())
    assert (report["rank"], report["exit_code"]) == (2, 5)


def test_earlier_of_two_failures_wins(shell: Shell) -> None:
    """Of ranks that fail one after the other by themselves the earlier one is told."""
    shell.script(
        "import os, sys, time\nrank = int(os.environ['RANK'])\ntime.sleep(0.3 * (3 - rank))\nsys.exit(10 + rank)\n"
    )
    done = shell.fork("-n", "3", "train.py")
    assert done.exit_code == 12
    assert "rank 2 on" in done.said


ALIKE = """
import atexit, os, time
rank = int(os.environ["RANK"])
atexit.register(time.sleep, 1.0 * rank)
open(f"ready-{rank}", "w").close()
while not os.path.exists("ready-0") or not os.path.exists("ready-1"):
    time.sleep(0.01)
time.sleep(0.2 * (1 - rank))
raise ValueError(MESSAGE)
"""


@pytest.mark.parametrize(("message", "rank"), [("'no such column'", 0), ("f'no such column on {rank}'", 1)])
def test_lowest_of_ranks_that_fail_alike_is_named(shell: Shell, message: str, rank: int) -> None:
    """The same traceback on all ranks is the script's, and rank 0's has been seen: it is not shown for another rank."""
    shell.script(ALIKE.replace("MESSAGE", message))
    done = shell.fork("-n", "2", "train.py")
    assert done.exit_code == 1
    assert f"rank {rank} on" in done.said
    assert done.said.count("failed first") == 1


@pytest.mark.parametrize("begun", some(["\r 80%|###  | 4/5", "", "name? "], 3))
def test_traceback_after_an_unfinished_line_is_one(shell: Shell, begun: str) -> None:
    """A progress bar or a prompt before it does not hide that the script has failed."""
    shell.script(f"import sys\nsys.stderr.write({begun!r})\nraise ValueError('wrong')\n")
    done = shell.fork("-n", "1", "--show", "none", "train.py")
    assert done.exit_code == 1
    assert "failed first: error in the script\n  │ Traceback (most recent call last)" in done.said


def test_refusal_after_an_unfinished_line_is_one(shell: Shell) -> None:
    """What a script has printed before it does not make wrong use a failure."""
    shell.script(
        "import torch\nprint('.', end='', flush=True)\nmodel = torch.nn.DataParallel(torch.nn.Linear(2, 1))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(4, 2)).mean().backward()\noptimizer.step()\n"
    )
    done = shell.fork("-n", "2", "train.py")
    assert (done.exit_code, "the script cannot be scaled" in done.said) == (2, True), done.said


def test_rank_that_left_before_others_missed_it_is_named(shell: Shell) -> None:
    """Where a connection is lost because a rank has ended with 0, the report says so."""
    shell.script(
        "import os, time\nif os.environ['RANK'] == '1':\n    os._exit(0)\ntime.sleep(1)\n"
        "raise RuntimeError('Connection closed by peer [127.0.0.1]:1')\n"
    )
    done = shell.fork("-n", "2", "train.py")
    assert done.exit_code == 1
    assert "connection to another rank lost: rank 1 had ended before, with exit code 0" in done.said


def test_rank_that_ends_well_does_not_end_the_others(shell: Shell) -> None:
    """Ranks may end at different times."""
    shell.script("import os, time\ntime.sleep(0.4 * int(os.environ['RANK']))\nprint('end', os.environ['RANK'])\n")
    done = shell.fork("-n", "3", "--show", "all", "train.py")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 3)


STUBBORN = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN if sys.argv[1] == "ignores" else signal.SIG_DFL)
open(f"ready-{rank}", "w").close()
while not all(os.path.exists(f"ready-{other}") for other in range(3)):
    time.sleep(0.01)
if rank == 1:
    open("failed", "w").close()
    sys.exit(5)
time.sleep(60)
"""


@product(habit=["obeys", "ignores"], launch=LAUNCHES)
def test_one_failure_ends_all_ranks_in_two_seconds(shell: Shell, habit: str, launch: str) -> None:
    """SIGTERM first, SIGKILL for whoever ignores it."""
    shell.script(STUBBORN)
    done = shell.run("-n", "3", "--launch", launch, "train.py", habit)
    took = time.time() - (shell.folder / "failed").stat().st_mtime
    assert done.exit_code == 5
    assert took < FAILURE_SECONDS + MARGIN_SECONDS


def test_stopped_rank_is_killed(shell: Shell) -> None:
    """A rank that stands still under SIGSTOP cannot hold the run."""
    shell.script(STUBBORN.replace("time.sleep(60)", "os.kill(os.getpid(), signal.SIGSTOP)"))
    done = shell.run("-n", "3", "train.py", "obeys")
    assert done.exit_code == 5
    assert time.time() - (shell.folder / "failed").stat().st_mtime < FAILURE_SECONDS + MARGIN_SECONDS


SLEEP = "import os, time; open('child', 'w').write(str(os.getpid())); time.sleep(300)"
# how a script may start something that outlives it; each writes its number down in the file `child`
CHILDREN = {
    "plain": f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}])",
    "own session": f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)",
    "own group": f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}], preexec_fn=os.setpgrp)",
    "by a shell": "os.system('(sleep 300 & echo $! > child)')",
    "nohup": "os.system('nohup setsid sleep 300 > /dev/null 2>&1 & echo $! > child')",
    "forked": f"os.fork() or exec({SLEEP!r})",
    "forked twice": f"os.fork() or (os.setsid(), os.fork() and os._exit(0), exec({SLEEP!r}))",
    "ignores signals": f"os.fork() or (signal.signal(15, signal.SIG_IGN), os.setsid(), exec({SLEEP!r}))",
    "no environment": f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}], env={{}})",
    "nothing in common": f"subprocess.Popen([sys.executable, '-c', {SLEEP!r}], env={{}}, start_new_session=True)",
}
STARTS = """
import os, signal, subprocess, sys, time
{child}
while not os.path.exists("child") or not open("child").read().strip():
    time.sleep(0.01)
{end}
"""
ENDS = {"well": "", "badly": "sys.exit(3)", "killed": "os.kill(os.getpid(), 9)"}


@pytest.mark.parametrize(("child", "end", "launch"), some(list(itertools.product(CHILDREN, ENDS, LAUNCHES)), 11))
def test_background_process_of_a_rank_is_gone_afterwards(shell: Shell, child: str, end: str, launch: str) -> None:
    """When the run is over nothing that it started still runs, whatever it was and however the rank ended."""
    shell.script(STARTS.format(child=CHILDREN[child], end=ENDS[end]))
    done = shell.run("--launch", launch, "train.py")
    pid = int((shell.folder / "child").read_text())
    try:
        assert not Path(f"/proc/{pid}").exists() or _is_zombie(pid)
    finally:
        if _is_sleeper(pid):
            os.kill(pid, signal.SIGKILL)
    assert done.exit_code == {"well": 0, "badly": 3, "killed": 137}[end]
    assert done.seconds < 60  # of 300


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _is_sleeper(pid: int) -> bool:
    try:
        return b"300" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_time_limit_ends_the_run(shell: Shell) -> None:
    """--timeout ends with 124, as timeout(1) does, and says so."""
    shell.script("import time; print('up', flush=True); time.sleep(60)")
    done = shell.run("-n", "2", "--timeout", "10", "train.py")
    assert done.exit_code == 124
    assert done.stdout == b"up\n"
    assert done.said.startswith("echelon: time limit: --timeout 10 s has passed\n")
    assert 10.0 <= done.seconds < 10.0 + FAILURE_SECONDS + MARGIN_SECONDS


@pytest.mark.parametrize("text", some(["0.02m", "0.5", "1s", "0.0005h"], 4))
def test_time_limit_has_units(shell: Shell, text: str) -> None:
    """Seconds, minutes and hours, with fractions."""
    shell.script("import time; time.sleep(60)")
    assert shell.fork("--timeout", text, "train.py").exit_code == 124


def test_time_limit_is_not_tried_again(shell: Shell) -> None:
    """The limit is the run's: restarts do not begin it anew."""
    shell.script("import time; open('starts', 'a').write('x'); time.sleep(60)")
    assert shell.fork("--timeout", "10", "--max-restarts", "3", "train.py").exit_code == 124
    assert (shell.folder / "starts").read_text() == "x"


def test_run_within_its_time_limit_ends_as_it_does(shell: Shell) -> None:
    """A limit that is not reached changes nothing."""
    shell.script("raise SystemExit(3)")
    assert shell.fork("--timeout", "1h", "train.py").exit_code == 3


TRIES = """
import os, sys, time
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
names = ("MASTER_PORT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE", "WORLD_SIZE")
print("attempt", attempt, flush=True)
with open(f"part-{attempt}-{rank}", "w") as file:
    file.write(chr(10).join(os.environ[name] for name in names))
os.rename(f"part-{attempt}-{rank}", f"try-{attempt}-{rank}")
if int(attempt) < int(sys.argv[1]) and rank == "1":
    while not os.path.exists(f"try-{attempt}-0"):  # rank 0 is ended as soon as this one fails
        time.sleep(0.01)
    sys.exit(3)
"""


@pytest.mark.parametrize("launch", some(LAUNCHES, 2))
def test_restart_begins_a_new_world(shell: Shell, launch: str) -> None:
    """All ranks start again, know that they do, meet at another port, and have logs of their own."""
    shell.script(TRIES)
    done = shell.fork("-n", "2", "--max-restarts", "3", "--launch", launch, "train.py", "2")
    assert done.exit_code == 0, done.said
    (run,) = shell.files("echelon-runs/*")
    ports = set()
    for attempt in range(3):
        for rank in range(2):
            port, most, error_file, world = (shell.folder / f"try-{attempt}-{rank}").read_text().split("\n")
            ports.add((attempt, port))
            assert (most, world) == ("3", "2")
            assert error_file == f"{run}/logs/attempt-{attempt}/rank-{rank}.error.json"
            assert shell.log(rank, attempt) == b"attempt %d\n" % attempt
    assert len(ports) == 3
    assert len({port for _, port in ports}) == 3
    assert done.stdout == b"attempt 0\nattempt 1\nattempt 2\n"
    assert re.findall("; (starting all ranks again.*)\n", done.said) == [
        "starting all ranks again",
        "starting all ranks again in 1 s",
    ]
    assert re.search(r" · run train-[0-9a-f]{4}$", done.said.splitlines()[-1])


@product(restarts=[0, 1, 2], launch=LAUNCHES)
def test_restarts_come_to_an_end(shell: Shell, restarts: int, launch: str) -> None:
    """After N restarts the failure is the run's, with its code."""
    shell.script(TRIES)
    done = shell.fork("-n", "2", "--max-restarts", str(restarts), "--launch", launch, "train.py", "99")
    assert done.exit_code == 3
    assert len(shell.files("echelon-runs/*/logs/attempt-*")) == restarts + 1
    report = json.loads(shell.files("echelon-runs/*/report.json")[0].read_text())
    assert (report["attempts"], report["restarts"]) == (restarts + 1, restarts)
    assert done.said.count("failed first") == restarts + 1


def test_restart_leaves_nothing_of_the_attempt_before(shell: Shell) -> None:
    """Workers of the failed attempt are gone before the new ranks start."""
    script = f"""
import os, subprocess, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
    while not os.path.exists("child") or not open("child").read():
        time.sleep(0.01)
    sys.exit(1)
try:
    print(open("/proc/" + open("child").read() + "/stat").read().rpartition(")")[2].split()[0])
except OSError:
    print("gone")
"""
    shell.script(script)
    done = shell.run("--max-restarts", "1", "train.py")
    assert done.exit_code == 0, done.said
    assert done.stdout in (b"gone\n", b"Z\n")


SIGNALLED = """
import os, signal, sys, time
rank = os.environ["RANK"]
def note(number, frame):
    with open("got-" + rank, "a") as file:
        file.write(signal.Signals(number).name + " ")
    if number in (signal.SIGTERM, signal.SIGINT):
        sys.exit(int(sys.argv[1]))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, note)
open("ready-" + rank, "w").close()
while True:
    time.sleep(0.05)
"""
WAITS = """
import os, time
open("ready-" + os.environ["RANK"], "w").close()
time.sleep(60)
"""
NUMBERS = [signal.SIGTERM, signal.SIGINT]


@product(number=NUMBERS, launch=LAUNCHES)
def test_signal_that_ends_reaches_every_rank_once(shell: Shell, number: signal.Signals, launch: str) -> None:
    """Ranks may save their state; when all of them then end well, so does the run."""
    shell.script(SIGNALLED)
    with shell.start("-n", "2", "--launch", launch, "train.py", "0") as process:
        wait_until(lambda: len(shell.files("ready-*")) == 2)
        process.send_signal(number)
        assert process.wait(10) == 0
    assert [path.read_text() for path in shell.files("got-*")] == [f"{number.name} "] * 2


@product(number=NUMBERS, launch=LAUNCHES)
def test_signal_that_no_rank_answers_is_the_exit_code(shell: Shell, number: signal.Signals, launch: str) -> None:
    """A run that is stopped from outside ends with 128 + the signal, and names it."""
    shell.script(WAITS)
    with shell.start("-n", "2", "--launch", launch, "train.py") as process:
        wait_until(lambda: len(shell.files("ready-*")) == 2)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"echelon: {number.name} stopped the run\n" in said.decode()
    assert "failed first" not in said.decode()


@pytest.mark.parametrize("launch", some(LAUNCHES, 2, 1))
def test_second_interrupt_kills_at_once(shell: Shell, launch: str) -> None:
    """Ctrl-C twice does not wait for ranks that ignore the first."""
    shell.script("import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + WAITS)
    with shell.start("-n", "2", "--launch", launch, "train.py") as process:
        wait_until(lambda: len(shell.files("ready-*")) == 2)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(FAILURE_SECONDS + MARGIN_SECONDS) == 130


@pytest.mark.parametrize("launch", some(LAUNCHES, 2))
def test_signal_that_warns_reaches_every_rank_and_the_run_goes_on(shell: Shell, launch: str) -> None:
    """SIGUSR1 and SIGUSR2, with which Slurm announces the end of a job, are the script's to answer."""
    shell.script(SIGNALLED)
    with shell.start("-n", "2", "--launch", launch, "train.py", "4") as process:
        wait_until(lambda: len(shell.files("ready-*")) == 2)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            process.send_signal(number)
            wait_until(lambda name=number.name: _have_got(shell, name), seconds=30)
        assert process.poll() is None
        process.terminate()
        assert process.wait(10) == 143


UNHEARD = """
import os, signal, time
assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL  # Lightning asks so whether it may install its handler
open("ready-" + os.environ["RANK"], "w").close()
while not os.path.exists("end"):
    time.sleep(0.05)
"""


@product(number=[signal.SIGUSR1, signal.SIGUSR2], launch=LAUNCHES)
def test_signal_that_warns_ends_no_script_without_a_handler(shell: Shell, number: signal.Signals, launch: str) -> None:
    """The signal that announces the end of a job is ignored, with one line; the run goes on."""
    shell.script(UNHEARD)
    with shell.start("-n", "2", "--launch", launch, "train.py") as process:
        wait_until(lambda: len(shell.files("ready-*")) == 2)
        for _ in range(2):
            process.send_signal(number)
            time.sleep(0.5)
        assert process.poll() is None
        (shell.folder / "end").touch()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert said.decode().count(f"note: {number.name} came; rank 0 and 1 more on ") == 1
    assert f"to save a snapshot then: signal.signal(signal.{number.name}, " in said.decode()


def _have_got(shell: Shell, name: str) -> bool:
    return [name in path.read_text() for path in shell.files("got-*")] == [True, True]


def test_rank_that_stays_is_named(shell: Shell) -> None:
    """When one rank still runs long after the others have ended, it is named, with its process and its log."""
    shell.script("import os, time\ntime.sleep(18 * int(os.environ['RANK']))\n")
    done = shell.run("-n", "2", "train.py")
    assert done.exit_code == 0
    note = r"note: 1 of 2 ranks ended 15 s ago; still runs: rank 1 on \S+, process \d+ \(\S+/rank-1\.log\)"
    assert re.search(note, done.said)
