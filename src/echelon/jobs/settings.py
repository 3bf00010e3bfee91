"""What is decided for a whole chain when it is submitted, and which of its sources were edited since."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.node import private
from echelon.script.reading import ScriptReading
from echelon.spec import Job

NAME = "chain.json"
FORMAT = 1
UNTIL_DONE = 0  # the number of jobs of a chain that goes on until its training ends
RESERVE_SECONDS = 120  # kept for a save before the time limit, until a job of the chain has measured one
MOST_WAITING = 20  # how many jobs are queued when a chain is submitted; later ones are queued by the jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The settings of a chain."""

    path: str = ""
    """The run directory of the chain; it is where chain.json was found."""
    name: str
    """The name of its jobs, which no other job has; trackers take it as the identity of the run."""
    num_jobs: int
    max_seconds: float
    """The cap of the sum of all jobs' time."""
    job_seconds: float
    """The time limit of each job."""
    reserve_seconds: int
    resumes_anyway: bool
    """Whether the chain goes on when the script was edited."""
    made_by: str

    @property
    def num_at_submission(self) -> int:
        """Return how many jobs are queued when the chain is submitted."""
        if self.num_jobs == UNTIL_DONE:
            return 1
        return max(1, min(self.num_jobs, int(self.max_seconds // self.job_seconds), MOST_WAITING))

    @property
    def script(self) -> str:
        return os.path.join(self.path, "job.sh")


def name_of(label: str, run_id: str) -> str:
    """Return the name of a chain's jobs.

    >>> name_of("my train", "90c2f1aa77")
    'my_train-90c2f1aa'
    """
    return f"{re.sub('[^A-Za-z0-9._-]', '_', label)[:27]}-{run_id[:8]}"  # Neptune takes 36 characters


def reserve(job_seconds: float) -> int:
    """Return the seconds that a new chain keeps for a save; at most half of a job."""
    return int(min(RESERVE_SECONDS, job_seconds / 2))


def write(chain: Chain) -> None:
    values = {name: value for name, value in asdict(chain).items() if name != "path"}
    private.write(os.path.join(chain.path, NAME), json.dumps({"format": FORMAT, **values}, indent=1).encode() + b"\n")


def read(run_directory: str) -> Chain | None:
    """Return the chain whose run directory this is; None: it is not a chain's. Raise UsageError if it is damaged."""
    path = os.path.join(run_directory, NAME)
    if not run_directory or not os.path.lexists(path):
        return None
    try:
        values = json.loads(regular_files.read_text(path))
        names = {each.name for each in fields(Chain)} - {"path"}
        if values["format"] != FORMAT:
            raise UsageError(
                f"{path} has format {values['format']}, and this echelon reads format {FORMAT}",
                hint="continue the chain with the echelon that began it",
            )
        return Chain(path=run_directory, **{name: values[name] for name in names})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}", hint="echelon submit --chain 5 --resume RUN …   begins a new chain"
        ) from None


FILE = "sources.json"
"""In a run directory with checkpoints: the files of the script, as they were when the run began or was continued."""


def hashes(reading: ScriptReading | None, cwd: str) -> dict[str, str]:
    """Return the script and the modules that it imports from its folder → the SHA-256 of each."""
    if reading is None:
        return {}
    import hashlib  # which a run outside of a chain does not pay

    script = reading.script
    return {
        _shown(path, cwd): hashlib.sha256(content).hexdigest()
        for path, content in reading.imports.files.items()
        if path == script.path or path.startswith(os.path.join(script.folder, ""))
    }


def _shown(path: str, cwd: str) -> str:
    """Return a path relative to the folder of the job if it lies there."""
    relative = os.path.relpath(path, cwd)
    return os.path.abspath(path) if relative.startswith("..") else relative


def differences(before: Mapping[str, str] | None, now: Mapping[str, str]) -> list[str]:
    """Name each file that differs, and how; `before` is None if no job has begun.

    >>> differences({"train.py": "a1", "model.py": "b1"}, {"train.py": "a2", "data.py": "c1"})
    ['train.py was edited', 'data.py is imported now', 'model.py is imported no more']
    """
    if before is None:
        return []
    edited = [f"{path} was edited" for path in before if path in now and now[path] != before[path]]
    added = [f"{path} is imported now" for path in now if path not in before]
    return edited + added + [f"{path} is imported no more" for path in before if path not in now]


def note_edits(job: Job, reading: ScriptReading | None, folder: str, cwd: str, say: Callable[[str], None]) -> None:
    """Say which files were edited since the run that is continued, whose checkpoints `folder` has; keep the hashes."""
    path = os.path.join(os.path.dirname(folder), FILE)
    now = hashes(reading, cwd)
    if job.checkpoints is not None and job.checkpoints.resumes:
        edited = differences(regular_files.read_object(path) or None, now)
        if edited:
            stays = (
                "what its checkpoint holds, such as the learning rate and the position in the data, stays; the steps "
                "before it are repeated by what is written now, which must ask for the same batches and values"
            )
            say(f"note: {listed(edited)} since the run that is continued; {stays}")
    try:
        private.write(path, json.dumps(now, indent=1).encode() + b"\n")
    except OSError:
        pass  # a folder that became read-only: the ranks say so when they save


def listed(names: Iterable[str], *, most: int = 5) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
