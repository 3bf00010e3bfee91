"""A rank behaves as the same script does under plain Python: every case of parity/cases.toml, started both ways."""

import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.tiers import some

from echelon.node import pulse

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest itself needs it there

SCRIPTS = Path(__file__).parent / "parity"
LAUNCHES = ("warm", "exec")
SECONDS = 250  # a little less than a test may take: on a busy machine two imports of torch took 120 s
PLACEHOLDERS = {"{bytes}": b"\xff\xfe", "{long}": b"x" * 100_000}
MODULES_OF_SCRIPTS = {"broken_module.py", "failing_module.py", "warning_module.py"}
# what decides how Python or a run behaves, and is not the same on every machine
FOREIGN = ("PYTHON", "SLURM", "ECHELON", "OMP_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_", "CUDA_VISIBLE")
ADDRESS = re.compile(rb"0x[0-9a-f]{6,16}\b")
IGNORED = re.compile(rb"('SigIgn:', ')([0-9a-f]{16})")
REPORT = re.compile(rb"^echelon: [^\n]*\n(?:  [^\n]*\n)*", re.MULTILINE)  # its further lines are indented


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One table of cases.toml."""

    name: str
    target: str
    is_module: bool
    args: tuple[str, ...] = ()
    stdin: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    present: str = "absolute"
    ranks: int = 1

    @property
    def uses_folder(self) -> bool:
        return "{folder}" in self.args


class Outcome(NamedTuple):
    """What the outside sees of a process that is over."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    files: dict[str, bytes]
    """What it left in {folder}: names with modes, and bytes."""


def _read_cases() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for row in tomllib.loads((SCRIPTS / "cases.toml").read_text("utf-8"))["case"]:
        is_module = "module" in row
        target = row.pop("module" if is_module else "script")
        args = tuple(row.pop("args", ()))
        words = ["-m", target] if is_module else [target]
        words += [word for word in args[:1] if re.fullmatch(r"[\w-]{2,20}", word)]
        words += [row["present"]] if "present" in row else []
        words += ["text-to-read"] if "stdin" in row else []
        words += row.get("environ", ())
        name = " ".join(words)
        if name in cases:
            name += f" {sum(other.split(' ')[0] == words[0] for other in cases)}"
        cases[name] = Case(name=name, target=target, is_module=is_module, args=args, **row)
    return cases


CASES = _read_cases()
Change = Callable[["Stage", Case], Outcome]


class Difference(NamedTuple):
    """Where a promise cannot hold: why, and what is seen instead, by launch."""

    why: str
    instead: dict[str, Change]


def _line_buffered(stage: "Stage", case: Case) -> Outcome:
    return stage.plain(replace(case, environ={**case.environ, "PYTHONPATH": str(stage.line_buffered)}))


def _edited(change: Callable[[Outcome], Outcome]) -> Change:
    return lambda stage, case: change(stage.plain(case))


def _without_importer_warning(outcome: Outcome) -> Outcome:
    kept = outcome.stderr.partition(b"/talkative_import.py:")[0].rpartition(b"\n")[0] + b"\n"
    return outcome._replace(stderr=kept)


_TIMED = (
    b" 0 [<bound method LineSampler._note_collection of <_echelon.node.line_sampler.LineSampler object at 0x...>>] []"
)


def _with_collections_timed(outcome: Outcome) -> Outcome:
    return outcome._replace(stdout=outcome.stdout.replace(b" 0 [] []", _TIMED))


def _with_frozen(outcome: Outcome) -> Outcome:
    timed = _with_collections_timed(outcome)
    return timed._replace(stdout=re.sub(rb"\b0 frozen\b", b"many frozen", timed.stdout))


def _everywhere(change: Change) -> dict[str, Change]:
    return dict.fromkeys(LAUNCHES, change)


_SIGSETXID = 33
_WHY_LIVE = "rank 0 is read live, so its stdout is line-buffered"
_FATAL = (signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGSEGV)
_WHY_WARNED = "sites announce the end of a job by SIGUSR1 or SIGUSR2, which must not end a script without a handler"


def _with_warnings_ignored(outcome: Outcome) -> Outcome:
    """Return the outcome with the kernel's bits for SIGUSR1, SIGUSR2, the signal for stacks and those of a crash.

    Python says SIG_DFL. What is written at a crash goes into the rank's page, and the signal then ends the rank.
    glibc catches SIGSETXID once a process has had a second thread.
    """

    def ignored(match: re.Match[bytes]) -> bytes:
        bits = sum(1 << number - 1 for number in (signal.SIGUSR1, signal.SIGUSR2))
        return match[1] + b"%016x" % (int(match[2], 16) | bits)

    def caught(match: re.Match[bytes]) -> bytes:
        bits = sum(1 << number - 1 for number in (pulse.SIGNAL, _SIGSETXID, *_FATAL))
        return match[1] + b"%016x" % (int(match[2], 16) | bits)

    stdout = re.sub(rb"(SigIgn:', ')([0-9a-f]+)", ignored, outcome.stdout)
    return outcome._replace(stdout=re.sub(rb"(SigCgt:', ')([0-9a-f]+)", caught, stdout))


def _with_pulse(outcome: Outcome) -> Outcome:
    file = b"%d /memfd:echelon-pulse (deleted)\n" % pulse.DESCRIPTOR_OF_RANK
    return outcome._replace(stdout=outcome.stdout + file)


def _with_finder(outcome: Outcome) -> Outcome:
    finders = rb"\n\['(?=(?:\w+', ')*BuiltinImporter')"
    return outcome._replace(stdout=re.sub(finders, b"\n['_UntilTorch', '", outcome.stdout))


DIFFERENT = {
    "streams.py": Difference(_WHY_LIVE, _everywhere(_line_buffered)),
    "closed_output.py": Difference(_WHY_LIVE, _everywhere(_line_buffered)),
    "no_newline.py": Difference(
        "the launcher's own last words begin on a line of their own",
        _everywhere(_edited(lambda outcome: outcome._replace(stderr=outcome.stderr + b"\n"))),
    ),
    "talkative_import.py PYTHONPATH": Difference(
        "a warning that blames the importing line blames the warm process, whose line is not the script's",
        {"warm": _edited(_without_importer_warning)},
    ),
    "garbage_collector.py": Difference(
        "collections are timed; what the warm process imported is frozen: its collection took half of a start's CPU",
        {"warm": _edited(_with_frozen), "exec": _edited(_with_collections_timed)},
    ),
    "threads.py": Difference(
        "a thread that Python's threading does not know looks at the line in which the script is",
        _everywhere(_edited(lambda outcome: outcome._replace(stdout=outcome.stdout.replace(b"True 1\n", b"True 2\n")))),
    ),
    "process_group.py": Difference(
        "a rank leads a session of its own, as under torchrun, so that all it starts can be ended with it",
        _everywhere(_edited(lambda outcome: outcome._replace(stdout=b"True True\n"))),
    ),
    "killed.py SIGUSR1": Difference(
        _WHY_WARNED,
        _everywhere(_edited(lambda outcome: outcome._replace(stdout=outcome.stdout + b"after\n", exit_code=0))),
    ),
    "open_files.py": Difference("the stacks of a rank that hangs go into this file", _everywhere(_edited(_with_pulse))),
    **{
        name: Difference(
            "steps are counted once PyTorch is imported, to notice a hang", _everywhere(_edited(_with_finder))
        )
        for name in ("interpreter.py", "interpreter.py PYTHONDEVMODE")
    },
    "signal_dispositions.py": Difference(_WHY_WARNED, _everywhere(_edited(_with_warnings_ignored))),
}


class Stage:
    """The folders and the environment in which every case is run both ways."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.links = root / "links"
        self.links.mkdir()
        for script in SCRIPTS.glob("*.py"):
            (self.links / script.name).symlink_to(script)
        with zipfile.ZipFile(root / "folder.zip", "w") as archive:
            for file in (SCRIPTS / "folder").glob("*.py"):
                archive.write(file, file.name)
        self.line_buffered = root / "line-buffered"
        self.line_buffered.mkdir()
        (self.line_buffered / "sitecustomize.py").write_text(
            "import sys\nsys.stdout.reconfigure(line_buffering=True)\n"
        )
        environ = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        self.environ = {**environ, "OMP_NUM_THREADS": "1"}

    def plain(self, case: Case) -> Outcome:
        """Run a case as `python script args`."""
        return self._run([sys.executable], case, self._room(case, "plain"))

    def rank(self, case: Case, launch: str, num_ranks: int = 1, attempt: int = 1) -> Outcome:
        """Run a case as `echelon run script args`; the launcher's own words are taken out of stderr."""
        room = self._room(case, f"{launch}-{num_ranks}-{attempt}")
        options = ["-n", str(num_ranks), "--launch", launch, "--run-dir", str(room / "run")]
        outcome = self._run([sys.executable, "-m", "echelon", "run", *options], case, room)
        assert b"not by fork" not in outcome.stderr, outcome.stderr.decode()
        return outcome._replace(stderr=REPORT.sub(b"", outcome.stderr))

    def _room(self, case: Case, name: str) -> Path:
        room = self.root / re.sub(r"\W+", "-", case.name) / name
        room.mkdir(parents=True, exist_ok=True)
        return room

    def _run(self, launcher: Sequence[str], case: Case, room: Path) -> Outcome:
        folder = room.parent / "folder"  # the same path each time: it may be printed
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        words = {**PLACEHOLDERS, "{folder}": os.fsencode(folder)}
        arguments = [words.get(argument, os.fsencode(argument)) for argument in case.args]
        environ = {key: value.replace("{scripts}", str(SCRIPTS)) for key, value in case.environ.items()}
        done = subprocess.run(
            [*launcher, *self._target(case), *arguments],
            cwd=SCRIPTS if case.is_module or case.present == "relative" else self.root,
            env={**self.environ, **environ},
            input=case.stdin.encode(),
            capture_output=True,
            preexec_fn=_usual_signals,
            timeout=SECONDS,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr, _contents(folder))

    def _target(self, case: Case) -> list[str]:
        if case.is_module:
            return ["-m", case.target]
        if case.present == "zip":
            return [str(self.root / f"{case.target}.zip")]
        if case.present == "relative":
            return [case.target]
        return [str((self.links if case.present == "symlink" else SCRIPTS) / case.target)]


def _contents(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = oct(path.lstat().st_mode)
        is_file = path.is_file() and not path.is_symlink()
        found[f"{path.relative_to(folder)} {mode}"] = path.read_bytes() if is_file else b""
    return found


def _without_thread_signals(match: re.Match[bytes]) -> bytes:
    """Take 32 and 33 out: glibc's posix_spawn (and so make) leaves them ignored, and no program can set them."""
    return b"%s%016x" % (match[1], int(match[2], 16) & ~(3 << 31))


def _usual_signals() -> None:
    """Undo what nohup or a background job of a shell has set before pytest began."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _shell(code: int) -> int:
    """Return the exit code that a shell shows for it."""
    return 128 - code if code < 0 else code


def _shown(outcome: Outcome, case: Case) -> dict[str, Any]:
    """Return what has to be the same both ways."""
    return {
        "exit code": _shell(outcome.exit_code),
        "stdout": IGNORED.sub(_without_thread_signals, ADDRESS.sub(b"0x...", outcome.stdout)),
        "stderr": ADDRESS.sub(b"0x...", outcome.stderr),
        "files": sorted(outcome.files) if case.ranks > 1 else outcome.files,  # random numbers stand in them
    }


class Outcomes:
    """Runs the cases that the collected tests ask for, two at a time, in their order."""

    def __init__(self, stage: Stage, wanted: Mapping[str, Sequence[str]]) -> None:
        self._pool = ThreadPoolExecutor(2)
        self._running: dict[str, Future[dict[str, Outcome]]] = {
            name: self._pool.submit(_observe, stage, CASES[name], launches) for name, launches in wanted.items()
        }

    def of(self, name: str, launch: str) -> tuple[Outcome, Outcome]:
        """Return what plain Python and what a rank did."""
        found = self._running[name].result()
        return found["plain"], found[launch]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _observe(stage: Stage, case: Case, launches: Sequence[str]) -> dict[str, Outcome]:
    if _is_missing(case):
        return {}
    seen = {"plain": _settled(lambda _: stage.plain(case))}
    for launch in launches:
        seen[launch] = _settled(functools.partial(stage.rank, case, launch, 1))
    return seen


def _settled(run: Callable[[int], Outcome]) -> Outcome:
    """Return what was seen, again where Python's tracker of semaphores complains, which is late on a busy machine."""
    for attempt in (1, 11, 12, 13):
        outcome = run(attempt)
        if b"resource_tracker: " not in outcome.stderr:
            break
    return outcome


def _is_missing(case: Case) -> bool:
    return bool(case.needs) and importlib.util.find_spec(case.needs) is None


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Make the folders that all cases share."""
    return Stage(tmp_path_factory.mktemp("parity"))


@pytest.fixture(scope="session")
def outcomes(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    """Begin to run the cases of all tests that were collected."""
    wanted: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and "outcomes" in item.fixturenames:
            wanted.setdefault(item.callspec.params["name"], []).append(item.callspec.params["launch"])
    running = Outcomes(stage, wanted)
    yield running
    running.close()


def _instead(name: str, launch: str) -> Change | None:
    return DIFFERENT[name].instead.get(launch) if name in DIFFERENT else None


EQUAL = [(name, launch) for name in CASES for launch in LAUNCHES if _instead(name, launch) is None]
UNEQUAL = [(name, launch) for name in CASES for launch in LAUNCHES if _instead(name, launch) is not None]
RANDOM = [(name, launch) for name, case in CASES.items() for launch in LAUNCHES if case.ranks > 1]


def _need(case: Case) -> None:
    if _is_missing(case):
        pytest.skip(f"{case.needs} is not installed")


@pytest.mark.parametrize(("name", "launch"), some(sorted(EQUAL, key=lambda pair: CASES[pair[0]].needs), 11))
def test_rank_does_what_plain_python_does(name: str, launch: str, outcomes: Outcomes) -> None:
    """Output, exit code and files of the script are the same, byte for byte but for addresses in memory."""
    _need(CASES[name])
    plain, rank = outcomes.of(name, launch)
    assert _shown(rank, CASES[name]) == _shown(plain, CASES[name])


@pytest.mark.parametrize(("name", "launch"), some(UNEQUAL, 3))
def test_rank_differs_from_plain_python_as_documented(name: str, launch: str, outcomes: Outcomes, stage: Stage) -> None:
    """Where the table DIFFERENT names a reason, exactly the difference that it names is seen, and no other."""
    change = _instead(name, launch)
    assert change is not None
    plain, rank = outcomes.of(name, launch)
    assert _shown(rank, CASES[name]) == _shown(change(stage, CASES[name]), CASES[name])
    assert _shown(rank, CASES[name]) != _shown(plain, CASES[name]), "no difference any more: take the row away"


@pytest.mark.parametrize(("name", "launch"), some(RANDOM, 9))
def test_each_rank_has_random_numbers_of_its_own(name: str, launch: str, stage: Stage) -> None:
    """Two ranks that a fork or an exec made, and a second run of them, draw four different sets of numbers."""
    _need(CASES[name])
    runs = [stage.rank(CASES[name], launch, num_ranks=2, attempt=attempt) for attempt in (1, 2)]
    drawn = [text for run in runs for text in run.files.values()]
    assert [run.exit_code for run in runs] == [0, 0], runs
    assert len(drawn) == 4
    assert len(set(drawn)) == 4, drawn


def test_each_script_is_in_the_table() -> None:
    """A script that nobody runs would promise something that nobody checks."""
    named = {case.target for case in CASES.values()}
    assert {path.name for path in SCRIPTS.glob("*.py")} - named == MODULES_OF_SCRIPTS
    assert DIFFERENT.keys() <= CASES.keys()
