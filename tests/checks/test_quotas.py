"""What `lfs quota` and `quota` print is read as they mean it, and judged."""

from pathlib import Path

import pytest

from echelon.checks.examine import examine
from echelon.checks.finding import Wanted
from echelon.node.survey import folders, take
from echelon.node.survey.nouns import Quota, Survey

TIB, KIB = 1 << 40, 1 << 10
LFS = """\
#!/bin/sh
case "$1 $3" in
  "project "*) echo "  4711 P $3" ;;
  "quota -u") echo "     {mount} 8 0 0 - 1 0 0 -" ;;
  "quota -g") echo "     {mount}" ; echo "     3221225472 0 4294967296 - 1000000* 0 1000000 -" ;;
  "quota -p") echo "     {mount} 1073741824* 1073741000 2147483648 6d22h 10 0 0 -" ;;
esac
"""
QUOTA = """\
#!/bin/sh
echo "Disk quotas for user me (uid 1000): "
echo "     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace"
echo "/dev/mapper/a-very-long-name-of-a-device 104857600* 104857600 125829120 1767225600 512 0 0 0"
"""


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "scratch" / "me").mkdir(parents=True)
    return tmp_path / "scratch"


def read(mount: Path, filesystem: str, tool: str, text: str) -> tuple[Quota, ...]:
    root = mount.parent
    line = f"23 21 0:22 / {mount} rw - {filesystem} server:/scratch rw\n"
    (root / "proc" / "self" / "mountinfo").write_text(line)
    if tool:
        (root / "bin" / tool).write_text(text)
        (root / "bin" / tool).chmod(0o755)
    environ = {"PATH": f"{root / 'bin'}:/bin:/usr/bin"}
    return folders.read_quotas(str(root), environ, checkpoints=str(mount / "me" / "checkpoints")).quotas


def test_lustre(mount: Path) -> None:
    """Kilobytes become bytes, stars and days are understood, a long name wraps, and what has no limit is left out."""
    group, project = read(mount, "lustre", "lfs", LFS.format(mount=mount))
    assert (group.owner, group.used_bytes, group.soft_bytes, group.limit_bytes) == ("group", 3 * TIB, 0, 4 * TIB)
    assert (group.used_files, group.limit_files) == (1_000_000, 1_000_000)
    assert (project.owner, project.used_bytes, project.limit_bytes) == ("project", TIB, 2 * TIB)
    assert project.soft_bytes == 1073741000 * KIB
    assert project.command == f"lfs quota -h -p 4711 {mount}"


def test_kernel(mount: Path) -> None:
    """The kernel's own quotas, and those of NFS, are asked of quota(1)."""
    (user,) = read(mount, "ext4", "quota", QUOTA)
    assert (user.owner, user.used_bytes >> 30, user.limit_bytes >> 30) == ("user", 100, 120)
    assert user.command == f"quota -s -f {mount}"


@pytest.mark.parametrize(
    ("filesystem", "tool", "text"),
    [
        ("ext4", "quota", "#!/bin/sh\necho 'Disk quotas for user me (uid 1000): none'\n"),
        ("ext4", "quota", "#!/bin/sh\necho 'quota: no quota on /scratch' >&2; exit 1\n"),
        ("lustre", "lfs", "#!/bin/sh\necho 'Some errors happened when getting quota info' ; exit 3\n"),
        ("lustre", "lfs", "#!/bin/sh\necho 1 2 3\n"),
        ("lustre", "lfs", "no program\n"),
        ("tmpfs", "", ""),
    ],
)
def test_no_quota(mount: Path, filesystem: str, tool: str, text: str) -> None:
    """Where there is none, or the tool fails, nothing is known."""
    assert read(mount, filesystem, tool, text) == ()


def test_tool_that_hangs(mount: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that does not answer is named."""
    monkeypatch.setattr(folders, "TOOL_SECONDS", 0.2)
    with pytest.raises(TimeoutError, match=r"lfs did not answer within 0\.2 s"):
        read(mount, "lustre", "lfs", "#!/bin/sh\nexec sleep 20\n")


@pytest.mark.parametrize(("is_full", "answered"), [(True, True), (False, False)])
def test_asked_in_full_alone(mount: Path, is_full: bool, answered: bool) -> None:
    """--fast asks no tool."""
    asked = take.SurveyRequest(is_full=is_full, checkpoints=str(mount))
    assert ("quotas" in take.survey(asked, {"PATH": "/bin"}).answered) == answered


@pytest.mark.parametrize(
    ("change", "severity", "says"),
    [
        ({"used_bytes": 4 * TIB}, "error", "the project's quota of bytes on /scratch is used up"),
        ({"used_bytes": 4 * TIB - (1 << 30)}, "warning", "the project's quota of bytes on /scratch is nearly used up"),
        ({"used_bytes": 3 * TIB, "soft_bytes": 2 * TIB}, "warning", "is above its soft limit"),
        ({"used_bytes": 3 * TIB, "soft_bytes": 3 * TIB, "limit_bytes": 0}, "warning", "is used up"),
        ({"used_files": 999_999}, "warning", "the project's quota of files on /scratch is nearly used up"),
        ({"used_files": 1_000_001}, "error", "the project's quota of files on /scratch is used up"),
        ({}, "", ""),
    ],
)
def test_judged(change: dict[str, int], severity: str, says: str) -> None:
    """Used up is an error, nearly so a warning, each with the command that shows it; room is no word."""
    fine = Quota(
        owner="project", mount="/scratch", used_bytes=TIB, soft_bytes=0, limit_bytes=4 * TIB, used_files=10,
        soft_files=0, limit_files=1_000_000, command="lfs quota -h -p 4711 /scratch",
    )  # fmt: skip
    survey = Survey(node="nid005002", answered=("quotas",))
    survey = survey._replace(quotas=survey.quotas._replace(quotas=(fine._replace(**change),)))
    found = [each for each in examine([survey], Wanted()) if each.check == "quota"]
    assert [(each.severity, says in each.message) for each in found] == ([(severity, True)] if severity else [])
    assert all("lfs quota -h -p 4711 /scratch" in each.remedy for each in found)
