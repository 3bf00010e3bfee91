import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import echelon
from echelon.environment import become
from echelon.environment.errors import SurroundingError

SOURCE = str(Path(echelon.__file__).parents[1])
EXEC = [
    sys.executable,
    "-c",
    "import os, sys; from echelon.environment import become; become.main(sys.argv[1:], os.environ)",
]
SHOW_ARGUMENTS = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
SHOW_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"
TASK = {"RANK": "3", "WORLD_SIZE": "1"}


def _exec(*arguments, environ=None, **options):
    """Run `echelon exec` as a process of its own."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": SOURCE, "LC_ALL": "C.UTF-8", **(environ or {})}
    return subprocess.run([*EXEC, *arguments], env=environ, capture_output=True, check=False, **options)


@pytest.mark.parametrize("locale", ["C.UTF-8", "C", "POSIX"])
def test_arguments_reach_the_program_byte_for_byte(locale):
    """Spaces, quotes, shell words, newlines, non-UTF-8 bytes and 100 kB of text arrive as they were given."""
    arguments = [
        b"", b" two  words ", b"'\"`", b"$(touch x) $HOME ${A} ; & | > <", b"line\nline\r\n\t", b"*?[a-z]~",
        b"\xff\xfe\x80caf\xe9", "π✓".encode(), b"--visible", b"-h", b"--", b"\\n\\", b"x" * 100_000,
    ]  # fmt: skip
    done = _exec(sys.executable, "-c", SHOW_ARGUMENTS, *arguments, environ={"LC_ALL": locale})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(b"\0") == arguments


def test_environment_reaches_the_program_byte_for_byte():
    """A value that is no UTF-8 and has a newline is the same in the program."""
    program = "import os, sys; sys.stdout.buffer.write(os.environb[b'STRANGE'])"
    strange = b"a\xff\n$(b) "
    environ = {b"PATH": os.environb[b"PATH"], b"PYTHONPATH": os.fsencode(SOURCE), b"STRANGE": strange}
    command = [*EXEC, sys.executable, "-c", program]
    assert subprocess.run(command, env=environ, capture_output=True, check=True).stdout == strange


def test_program_takes_the_place_of_the_process():
    """There is no process between the launcher and the program: same id, same exit code, stdin passed on."""
    program = "import os, sys; print(os.getpid(), sys.stdin.read()); sys.exit(17)"
    command = [*EXEC, sys.executable, "-c", program]
    environ = {**os.environ, "PYTHONPATH": SOURCE}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate("input")
    assert (output, process.returncode) == (f"{process.pid} input\n", 17)


def test_program_dies_of_a_closed_pipe():
    """Python's own ignoring of SIGPIPE is not handed on to the program."""
    done = _exec("bash", "-c", "trap -p PIPE; grep SigIgn /proc/self/status")
    ignored = int(done.stdout.split()[-1], 16)
    assert not ignored & (1 << 12) and not ignored & (1 << 24)


def test_slurm_task_has_every_frameworks_variables(recorded):
    """In a recorded Slurm step, the program sees its rank in the words of each framework."""
    done = _exec(sys.executable, "-c", SHOW_ENVIRONMENT, environ=recorded("srun-2x8-rank9"))
    environ = json.loads(done.stdout)
    names = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    assert [environ[name] for name in names] == ["9", "1", "16", "8", "1", "nid005000", "20002"]
    assert (environ["HOROVOD_RANK"], environ["JAX_PROCESS_ID"], environ["CROSS_SIZE"]) == ("9", "9", "2")
    assert environ["TORCHELASTIC_RUN_ID"] == "1.0"
    assert environ["SLURM_PROCID"] == "9"
    assert done.stderr == b""


def test_own_device_of_a_slurm_task(recorded, amd_tree):
    """With --visible own each rank of the node sees its device alone, as device 0."""
    root = str(amd_tree(8))
    environ = {**recorded("srun-2x8-rank9"), "HIP_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    rank = become.rank_environment(environ, visible="own", root=root)
    assert (rank["ROCR_VISIBLE_DEVICES"], rank["LOCAL_RANK"], rank["ECHELON_LOCAL_RANK"]) == ("1", "0", "1")
    assert "HIP_VISIBLE_DEVICES" not in rank
    assert rank["HOROVOD_LOCAL_RANK"] == "1"


def test_all_devices_of_a_slurm_task(recorded, amd_tree):
    """By default a rank sees what it saw, and its local rank is the number of its device."""
    environ = recorded("srun-2x8-rank9")
    rank = become.rank_environment(environ, root=str(amd_tree(8)))
    assert rank["ROCR_VISIBLE_DEVICES"] == environ["ROCR_VISIBLE_DEVICES"]
    assert rank["LOCAL_RANK"] == "1"


def test_one_device_per_task_by_slurm(recorded, amd_tree):
    """Where each task has one device already, its number is 0: local rank 1 would be an invalid device."""
    environ = {**recorded("srun-2x8-rank9"), "ROCR_VISIBLE_DEVICES": "1"}
    rank = become.rank_environment(environ, root=str(amd_tree(8)))
    assert (rank["LOCAL_RANK"], rank["ECHELON_LOCAL_RANK"]) == ("0", "1")


def test_torchruns_variables_are_kept_all():
    """Under torchrun nothing that torchrun set is changed, and the other frameworks' names are added."""
    torchrun = {
        "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "n0", "MASTER_PORT": "41779", "ROLE_NAME": "trainer",
        "TORCHELASTIC_RUN_ID": "abc", "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "2", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    rank = become.rank_environment(torchrun)
    assert {name: rank[name] for name in torchrun} == torchrun
    assert rank["HOROVOD_RANK"] == "3"


def test_stale_rank_is_set_anew_and_named_once(recorded):
    """RANK=0 of the batch script does not make every task rank 0, and rank 0 says so."""
    first = {**recorded("srun-second-step-rank0"), **TASK}
    done = _exec(sys.executable, "-c", SHOW_ENVIRONMENT, environ=first)
    assert json.loads(done.stdout)["RANK"] == "0"
    assert b"RANK=3" in done.stderr and b"hint: unset RANK" in done.stderr
    later = {**recorded("srun-2x8-rank9"), **TASK}
    done = _exec(sys.executable, "-c", SHOW_ENVIRONMENT, environ=later)
    assert json.loads(done.stdout)["RANK"] == "9"
    assert done.stderr == b""


def test_the_users_threads_stay(recorded):
    """OMP_NUM_THREADS of the user wins; without one, a rank has the cores that it shares with nobody."""
    environ = {**recorded("srun-2x8-rank9"), "SLURM_CPUS_ON_NODE": "16"}
    assert become.rank_environment({**environ, "OMP_NUM_THREADS": "5"})["OMP_NUM_THREADS"] == "5"
    expected = min(2, len(os.sched_getaffinity(0)))
    assert become.rank_environment(environ)["OMP_NUM_THREADS"] == str(expected)


def test_threads_of_a_bound_task(recorded):
    """A task bound to one core has one thread, whatever the node has."""
    environ = {**recorded("srun-2x8-rank9"), "SLURM_CPUS_ON_NODE": "128"}
    core = min(os.sched_getaffinity(0))
    program = "import os; print(os.environ['OMP_NUM_THREADS'])"
    done = _exec(sys.executable, "-c", program, environ=environ, preexec_fn=lambda: os.sched_setaffinity(0, {core}))
    assert done.stdout == b"1\n"


def test_one_rank_alone_has_no_thread_limit():
    """As under torchrun, a single local rank keeps the libraries' own choice."""
    assert "OMP_NUM_THREADS" not in become.rank_environment({})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "echelon exec needs a program"),
        (["--visible", "own"], "echelon exec needs a program"),
        (["--visible"], "--visible takes own or all, not ''"),
        (["--visible=some", "python"], "--visible takes own or all, not 'some'"),
        (["--visibel=own", "python"], "did you mean --visible?"),
        (["-x", "python"], "echelon exec has no option -x"),
        (["no-such-folder/train"], "there is no program no-such-folder/train"),
        (["pyton3-does-not-exist-xyz"], "there is no program pyton3-does-not-exist-xyz"),
        (["/usr"], "/usr is a folder"),
    ],
)
def test_refusal(arguments, message):
    """What cannot be started ends with one error, one hint and exit code 2."""
    done = _exec(*arguments)
    assert done.returncode == 2
    error, hint = done.stderr.decode().splitlines()
    assert error.startswith("echelon: error: ") and hint.startswith("  hint: ")
    assert message in done.stderr.decode()
    assert done.stdout == b""


def test_refusal_of_a_mistyped_program():
    """The nearest names on PATH are offered."""
    done = _exec("pyhton3", "train.py")
    assert done.returncode == 2
    assert b"did you mean" in done.stderr and b"python3" in done.stderr


@pytest.mark.parametrize(
    ("name", "text", "mode", "message"),
    [
        ("train.py", "print(1)", 0o644, "hint: echelon exec python {path}"),
        ("start", "echo", 0o644, "hint: chmod +x {path}"),
        ("start", "#!/no/such/python\n", 0o755, "interpreter that does not exist: #!/no/such/python"),
        ("start", "echo hello\n", 0o755, "hint: echelon exec bash {path}"),
    ],
)
def test_refusal_of_a_file_that_cannot_be_run(tmp_path, name, text, mode, message):
    """A file that exists is told apart from one that does not, with what makes it run."""
    path = tmp_path / name
    path.write_text(text)
    path.chmod(mode)
    done = _exec(str(path))
    assert done.returncode == 2
    assert message.format(path=path) in done.stderr.decode()


def test_refusal_of_a_script_named_without_python(tmp_path):
    """`echelon exec train.py` in the script's folder is told to say python."""
    (tmp_path / "train.py").write_text("")
    done = _exec("train.py", cwd=tmp_path)
    assert done.returncode == 2
    assert b"hint: echelon exec python train.py" in done.stderr


def test_refusal_of_variables_that_disagree(recorded):
    """A wrong environment is an error of one line with a hint, not a traceback."""
    done = _exec("true", environ={**recorded("srun-2x8-rank9"), "SLURM_NODEID": "7"})
    assert done.returncode == 2
    assert done.stderr.startswith(b"echelon: error: Slurm's variables disagree")
    with pytest.raises(SurroundingError):
        become.rank_environment({**recorded("srun-2x8-rank9"), "SLURM_NODEID": "7"})


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_ends_with_a_real_invocation(option):
    """The help goes to stdout and its last line can be pasted."""
    done = _exec(option)
    assert done.returncode == 0
    assert done.stdout.decode().splitlines()[-1].startswith("example: srun ")


def test_options_end_at_the_program():
    """What stands behind the program's name is the program's."""
    assert become.read(["--visible", "own", "--", "-x", "--help"]) == ("own", ["-x", "--help"])
    assert become.read(["echo", "--visible", "own"]) == ("all", ["echo", "--visible", "own"])
