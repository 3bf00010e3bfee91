"""A host that answers as a site's Slurm does, and one that nobody answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from echelon.host import Finished, Host, RecordedHost, ToolSlow
from echelon.scheduler.slurm.site import SINFO

RECORDINGS = Path(__file__).parent / "recordings"
VERSIONS = sorted(path.name for path in RECORDINGS.iterdir() if path.is_dir())
NOON = 1795262400.0  # 2026-11-21, 12:00 UTC


def said(text: str) -> Finished:
    return Finished(exit_code=0, stdout=text, stderr="")


def refused(text: str) -> Finished:
    return Finished(exit_code=1, stdout="", stderr=text)


def answers(version: str) -> dict[tuple[str, ...], Finished]:
    """Return what scontrol says, and sinfo where that is recorded."""
    folder = RECORDINGS / version
    found = {
        ("scontrol", "show", word): said((folder / f"{word}.txt").read_text())
        for word in ("config", "partition", "node")
    }
    if (folder / "sinfo.txt").exists():
        found[SINFO] = said((folder / "sinfo.txt").read_text())
    return found


def host(version: str, environ: Mapping[str, str] = {}, **changes: Finished) -> RecordedHost:
    """Return a host of that version; a change replaces the answer of `scontrol show WORD`."""
    replaced = {("scontrol", "show", word): answer for word, answer in changes.items()}
    return RecordedHost(environ=environ, answers={**answers(version), **replaced}, now=NOON)


class SlowHost(Host):
    """A machine whose Slurm does not answer in time."""

    def ask(self, argv: Sequence[str], *, timeout_seconds: float) -> Finished:
        raise ToolSlow(f"{argv[0]} did not answer within {timeout_seconds:g} s")
