"""The folder of checkpoints: only whole ones are found, and no failure of a writer touches an earlier one."""

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tiers import pick

from echelon.checkpoint import manifest as manifests
from echelon.checkpoint.errors import CheckpointError, WriteError
from echelon.checkpoint.store import Checkpoint, CheckpointStore
from echelon.checkpoint.written import HashedFile

NUM_KILLS = pick(100, all=1000)


def save(folder: Path, step: int, keep: int = 3, content: bytes = b"numbers") -> Checkpoint:
    draft = CheckpointStore(str(folder), keep).begin(step)
    files = {f"rank-{rank}.safetensors": draft.write(f"rank-{rank}.safetensors", content * step) for rank in range(2)}
    return draft.publish(files, num_ranks=2, about={"loss": 0.5}, versions={"torch": "2.13.0"})


def steps(folder: Path) -> list[int]:
    return [entry.step for entry in CheckpointStore(str(folder)).entries()]


def test_latest_is_what_was_published(tmp_path: Path) -> None:
    """The manifest comes back with all that was written; the folder is readable by its owner alone."""
    assert CheckpointStore(str(tmp_path / "none")).latest() == (None, [])
    save(tmp_path / "folder", 100)
    written = save(tmp_path / "folder", 120)
    found, findings = CheckpointStore(str(tmp_path / "folder")).latest(deep=True)
    assert (found, findings) == (written, [])
    assert found is not None
    assert (found.step, found.manifest.num_ranks, found.manifest.about) == (120, 2, {"loss": 0.5})
    assert found.manifest.num_bytes == 2 * 7 * 120
    assert os.stat(found.path).st_mode & 0o777 == 0o700


def test_newest_are_kept(tmp_path: Path) -> None:
    """Older ones go as soon as a newer one is published; also one whose step is smaller than that of older ones."""
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    assert steps(tmp_path) == [20, 30, 40]
    save(tmp_path, 25)
    assert steps(tmp_path) == [25, 30, 40]
    found, _ = CheckpointStore(str(tmp_path)).latest()
    assert found is not None
    assert found.step == 25
    assert sorted(os.listdir(tmp_path)) == ["step-000000025", "step-000000030", "step-000000040"]
    with pytest.raises(CheckpointError, match="0 checkpoints are to be kept"):
        CheckpointStore(str(tmp_path), keep=0)


def test_same_step_is_replaced(tmp_path: Path) -> None:
    """A step that is written again takes the place of the first, also if the writer died between its two renames."""
    save(tmp_path, 10)
    save(tmp_path, 20, content=b"first")
    save(tmp_path, 20, content=b"second")
    assert sorted(os.listdir(tmp_path)) == ["step-000000010", "step-000000020"]
    os.rename(tmp_path / "step-000000020", tmp_path / ".step-000000020.replaced-0a")
    found, findings = CheckpointStore(str(tmp_path)).latest(deep=True)
    assert found is not None
    assert (found.step, findings) == (20, [])
    save(tmp_path, 30)
    assert steps(tmp_path) == [10, 20, 30]


def truncate(folder: Path) -> None:
    os.truncate(folder / "rank-1.safetensors", 3)


def flip(folder: Path) -> None:
    content = bytearray((folder / "rank-0.safetensors").read_bytes())
    content[5] ^= 1
    (folder / "rank-0.safetensors").write_bytes(content)


def flip_manifest(folder: Path) -> None:
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"loss": 0.5', '"loss": 0.6'))


def newer(folder: Path) -> None:
    fields = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**fields, "format": 2}))


def foreign(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "model.pt").write_text("a checkpoint of another program")


def outside(folder: Path) -> None:
    manifest = manifests.read(str(folder))
    files = {"../step-000000010/rank-0.safetensors": manifest.files["rank-0.safetensors"]}
    (folder / "manifest.json").write_bytes(manifests.encode(manifest._replace(files=files)))


def become_folder(folder: Path) -> None:
    (folder / "rank-0.safetensors").unlink()
    (folder / "rank-0.safetensors").mkdir()


def make_pipe(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")


DAMAGES: tuple[tuple[Callable[[Path], None], str], ...] = (
    (truncate, "rank-1.safetensors has 3 bytes, but 140 were written"),
    (flip, "the content of rank-0.safetensors is not what was written"),
    (flip_manifest, "manifest.json was altered"),
    (lambda folder: (folder / "rank-0.safetensors").unlink(), "rank-0.safetensors is missing"),
    (lambda folder: (folder / "manifest.json").unlink(), "it has no manifest.json: echelon did not write it"),
    (lambda folder: os.truncate(folder / "manifest.json", 30), "manifest.json is truncated, or is not JSON"),
    (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json is not that of a checkpoint"),
    (lambda folder: (folder / "manifest.json").write_text("[" * 10**5), "manifest.json is truncated, or is not JSON"),
    (newer, "its format is 2, and this version of echelon reads format 1"),
    (foreign, "it has no manifest.json: echelon did not write it"),
    (outside, "outside of its folder"),
    (become_folder, "rank-0.safetensors is not a regular file"),
    (make_pipe, "manifest.json is truncated, or is not JSON"),
)


@pytest.mark.parametrize(("damage", "told"), DAMAGES, ids=lambda one: getattr(one, "__name__", one)[:40])
def test_damaged_one_is_skipped(damage: Callable[[Path], None], told: str, tmp_path: Path) -> None:
    """The one before is used, a sentence says why, and the next save neither fails nor keeps fewer whole ones."""
    save(tmp_path, 10)
    save(tmp_path, 20)
    damage(tmp_path / "step-000000020")
    found, findings = CheckpointStore(str(tmp_path)).latest(deep=True)
    assert found is not None
    assert found.step == 10
    assert len(findings) == 1
    assert findings[0].startswith("step-000000020 is not used: ")
    assert told in findings[0]
    save(tmp_path, 20, keep=1)
    assert CheckpointStore(str(tmp_path)).latest(deep=True)[1] == []


def test_renamed_one_is_skipped(tmp_path: Path) -> None:
    """A folder with the name of another step is no checkpoint of that step; other names are not looked at."""
    save(tmp_path, 10)
    os.rename(tmp_path / "step-000000010", tmp_path / "step-000000011")
    (tmp_path / "notes").mkdir()
    found, findings = CheckpointStore(str(tmp_path)).latest()
    assert found is None
    assert findings == ["step-000000011 is not used: its folder has the name of step 11, but it was written at step 10"]


def test_writer_is_killed_at_random_moments(tmp_path: Path) -> None:
    """Whenever a writer is killed, the newest published checkpoint is whole, and its rubbish is removed."""
    command = [sys.executable, "-m", "tests.checkpoint.killing", str(tmp_path / "folder"), str(NUM_KILLS), "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    published, num_torn = map(int, done.stdout.split())
    assert published > NUM_KILLS / 10
    assert num_torn > NUM_KILLS / 100  # how many depends on the load of the machine


def refused(folder: Path, step: int) -> WriteError:
    with pytest.raises(WriteError) as caught:
        save(folder, step)
    return caught.value


def assert_only_10(folder: Path) -> None:
    found, findings = CheckpointStore(str(folder)).latest(deep=True)
    assert found is not None
    assert (found.step, findings, os.listdir(folder)) == (10, [], ["step-000000010"])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_disk_that_refuses(number: int, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails, the cause is named, nothing is left behind, and earlier checkpoints are intact."""
    save(tmp_path, 10)

    def fail(*arguments: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(WriteError) as caught:
            draft = CheckpointStore(str(tmp_path)).begin(20)
            try:
                files = {"a": draft.write("a", b"content")}
                draft.publish(files, num_ranks=1, about={}, versions={})
            except WriteError:
                draft.discard()
                raise
    assert caught.value.number == number
    assert caught.value.message.startswith("cannot write ")
    assert_only_10(tmp_path)
    save(tmp_path, 20)
    assert steps(tmp_path) == [10, 20]


def test_limit_for_files(tmp_path: Path) -> None:
    """A file that the system cuts short is an error, not a shorter checkpoint."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    draft = CheckpointStore(str(tmp_path)).begin(20)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(WriteError, match="larger than the limit"):
            draft.write("a", bytes(3 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    draft.discard()
    assert os.listdir(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """A file system of 1 MiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this user cannot mount a tmpfs")
    except FileNotFoundError:
        pytest.skip("there is no mount")
    yield folder  # type: ignore[misc]
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(small_disk: Path) -> None:
    """A real full disk: the earlier checkpoint stays, and the next one that fits is written."""
    save(small_disk / "c", 10)
    draft = CheckpointStore(str(small_disk / "c")).begin(20)
    with pytest.raises(WriteError, match="the disk is full"), draft.file("big") as file:
        file.write(bytes(2 << 20))
    draft.discard()
    assert_only_10(small_disk / "c")
    save(small_disk / "c", 30)
    assert steps(small_disk / "c") == [10, 30]


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    """A file in place of a folder, and a folder of another user, are named."""
    (tmp_path / "file").write_text("")
    assert "file" in refused(tmp_path / "file", 10).message
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        assert "permission denied" in refused(tmp_path / "closed", 10).message


def test_drafts_of_living_writers_stay(tmp_path: Path) -> None:
    """A draft is removed once its process is gone, or once its node has been silent for an hour."""
    alive = CheckpointStore(str(tmp_path)).begin(10)
    dead = tmp_path / alive.name.replace(f"-{os.getpid()}-", "-4194999-")  # above the largest pid of Linux
    elsewhere, silent = tmp_path / ".step-000000010.partial-n1-1-aa", tmp_path / ".step-000000010.partial-n1-1-bb"
    for folder in (dead, elsewhere, silent):
        folder.mkdir()
    os.utime(silent, (0, 0))
    CheckpointStore(str(tmp_path)).begin(20).discard()
    assert sorted(os.listdir(tmp_path)) == sorted([alive.name, elsewhere.name])


def test_draft_is_joined_by_its_name(tmp_path: Path) -> None:
    """Several ranks write into one draft; a name that is none is refused."""
    draft = CheckpointStore(str(tmp_path)).begin(10)
    other = CheckpointStore(str(tmp_path)).join(draft.name)
    files = {"a": draft.write("a", b"1"), "b": other.write("b", b"22")}
    assert draft.publish(files, num_ranks=2, about={}, versions={}).manifest.num_bytes == 3
    for name in ("../x", ".step-1.partial-/../../x", "step-1"):
        with pytest.raises(CheckpointError, match="not the name of a draft"):
            CheckpointStore(str(tmp_path)).join(name)


def test_missing_file_is_not_published(tmp_path: Path) -> None:
    """A rank that has not written what it announced, makes no checkpoint."""
    draft = CheckpointStore(str(tmp_path)).begin(10)
    files = {"a": draft.write("a", b"1"), "b": manifests.WrittenFile(5, "blake2b:0")}
    with pytest.raises(CheckpointError, match="b is missing"):
        draft.publish(files, num_ranks=2, about={}, versions={})
    assert os.listdir(tmp_path) == []


def test_error_inside_of_a_file_is_the_error(tmp_path: Path) -> None:
    """An exception of the writer passes through."""
    with pytest.raises(KeyError), HashedFile(str(tmp_path / "a")):
        raise KeyError("a")
