"""Files come to many nodes as one stream down a tree: whole, or what changed; a full or lost node is named."""

import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks.staging import Nodes

from echelon.errors import EchelonError
from echelon.launch import staged_source, staging
from echelon.node import staged_copy
from echelon.node import staging as on_node
from echelon.node.survey import folders
from echelon.spec import Staged

NUM_NODES = 7


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with an inner one, files larger than a piece of the stream, links and names of many kinds."""
    folder = tmp_path / "shared" / "data"
    (folder / "inner" / "empty").mkdir(parents=True)
    (folder / "inner" / "large").write_bytes(os.urandom(3 * on_node.PIECE_BYTES + 17))
    (folder / "inner" / ("long-" * 40)).write_text("a name of 200 letters")
    (folder / "inner" / "ünïcode \n name").write_text("text")
    (folder / os.fsdecode(b"bytes-\xff")).write_text("")
    (folder / "inside").symlink_to("inner/large")
    (folder / "outside").symlink_to("../beside")
    (folder / "manifest").write_text("a name of ours")
    (folder / "program").write_text("#!/bin/sh\n")
    (folder / "program").chmod(0o755)
    (tmp_path / "shared" / "beside").write_text("beside")
    return folder


@contextmanager
def nodes(
    folder: Path, source: Path, num_nodes: int = NUM_NODES, places: dict[int, Path] | None = None, **fields: object
) -> Iterator[Nodes]:
    item = Staged(source=str(source), folder="/x/key", target=f"/x/key/files/{source.name}", **fields)  # type: ignore[arg-type]
    staged = Nodes(folder, item, num_nodes, places)
    try:
        yield staged
    finally:
        staged.end()


def content(folder: Path) -> dict[str, object]:
    """Return all below a folder: the bytes of files, the targets of links, None for folders."""
    paths = {path: path.relative_to(folder) for path in folder.rglob("*")}
    return {
        str(name): os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        for path, name in paths.items()
    }


def test_all_nodes_get_all(tmp_path: Path, source: Path) -> None:
    """The copies are equal and read-only; a link out of the folder still leads to its file; the end leaves nothing."""
    with nodes(tmp_path, source) as staged:
        assert f"data staged on {NUM_NODES} nodes: 6 files, 3 MiB in " in staged.stage()
        wanted = {**content(source), "outside": str(tmp_path / "shared" / "beside")}
        for copy in staged.copies:
            assert content(copy / "files" / "data") == wanted
            assert (copy / "files" / "data" / "program").stat().st_mode & 0o777 == 0o555
            assert not (copy / "files" / "data" / "inner").stat().st_mode & 0o222
            assert (copy / "files" / "data" / "inner" / "large").stat().st_mtime == int(
                (source / "inner" / "large").stat().st_mtime
            )
    assert not any(copy.parent.exists() for copy in staged.copies)


def test_holes_of_a_file_stay_holes(tmp_path: Path, source: Path) -> None:
    """A file that is mostly holes has the same bytes, and takes as little of the node's disk."""
    with open(source / "sparse", "wb") as file:
        file.truncate(8 * on_node.PIECE_BYTES)
        file.seek(5 * on_node.PIECE_BYTES)
        file.write(b"here")
    with nodes(tmp_path, source, 1) as staged:
        staged.stage()
        copy = staged.copies[0] / "files" / "data" / "sparse"
        assert copy.read_bytes() == (source / "sparse").read_bytes()
        assert copy.stat().st_blocks * 512 <= on_node.PIECE_BYTES


def test_what_changed_is_sent_again(tmp_path: Path, source: Path) -> None:
    """A second run of the pool's nodes gets what changed since the first, loses what was removed, else gets nothing."""
    with nodes(tmp_path, source, 3) as staged:
        staged.stage()
        (source / "program").unlink()
        (source / "inner" / "empty").rmdir()
        (source / "inner" / "empty").write_text("a file now")
        (source / "inner" / "new").write_text("new")
        staged.kill()
        with nodes(tmp_path, source, 3) as again:
            assert "data staged on 3 nodes: what changed, " in again.stage()
            wanted = {**content(source), "outside": str(tmp_path / "shared" / "beside")}
            assert [content(copy / "files" / "data") for copy in again.copies] == [wanted] * 3
            again.kill()
            with nodes(tmp_path, source, 3) as third:
                assert third.stage() == "data is staged already: /x/key/files/data"


def test_full_disk_is_named(tmp_path: Path, source: Path) -> None:
    """A node's disk that is too small is named before the stream; one that fills up meanwhile, after it."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=True)
    try:
        refusal = r"data takes 3 MiB, but \S+ has (1\.\d|2) MiB free in /x"
        with nodes(tmp_path, source, 3, {1: small / "stage"}) as staged, pytest.raises(EchelonError, match=refusal):
            staged.stage()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staging, "SPARE_BYTES", -1 << 30)
            with nodes(tmp_path, source, 3, {1: small / "stage"}) as staged:
                with pytest.raises(EchelonError, match=r"data could not be staged on \S+: No space left on device"):
                    staged.stage()
                assert content(staged.copies[2] / "files" / "data").keys() == content(source).keys()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_lost_node_is_named(tmp_path: Path, source: Path) -> None:
    """A node that is lost ends the staging with its name."""
    with nodes(tmp_path, source) as staged:
        staged.root.gather([staged.item])
        staged.processes[1].kill()
        with pytest.raises(EchelonError, match=r"the nodes' disks could not be filled: .*connection"):
            staged.stage()


def test_what_a_broken_stream_has_left_goes(tmp_path: Path, source: Path) -> None:
    """A copy without a manifest is not known, so nothing of it stays beside what comes."""
    with nodes(tmp_path, source, 2) as staged:
        staged.stage()
        staged.kill()
        (staged.copies[1] / "manifest").unlink()
        (source / "program").unlink()
        with nodes(tmp_path, source, 2) as again:
            again.stage()
            wanted = {**content(source), "outside": str(tmp_path / "shared" / "beside")}
            assert [content(copy / "files" / "data") for copy in again.copies] == [wanted] * 2


def test_source_that_changes_meanwhile(tmp_path: Path, source: Path) -> None:
    """A file that has another size or time than the list ends the staging."""
    listing = staged_source.read(str(source))
    (source / "program").write_text("#!/bin/no")
    with pytest.raises(EchelonError, match="program was changed while it was staged"):
        list(staged_source.stream(listing, listing.entries, None))


def test_shards(tmp_path: Path) -> None:
    """Each node has the files that its ranks read by their numbers, and links to the others."""
    source = tmp_path / "shards"
    source.mkdir()
    for number in range(8):
        (source / f"{number}.tar").write_text(str(number))
    (source / "link").symlink_to("0.tar")
    (source / "empty").mkdir()
    with nodes(tmp_path, source, 2, is_shard=True, ranks_per_node=2) as staged:
        assert "8 shards of shards shared by 2 nodes" in staged.stage()
        links = [
            [name.name for name in sorted((copy / "files" / "shards").iterdir()) if name.is_symlink()]
            for copy in staged.copies
        ]
        assert links == [
            ["2.tar", "3.tar", "6.tar", "7.tar", "link"], ["0.tar", "1.tar", "4.tar", "5.tar", "link"]
        ]  # fmt: skip
        assert all((copy / "files" / "shards" / "empty").stat().st_mode & 0o777 == 0o500 for copy in staged.copies)
        assert all(
            (copy / "files" / "shards" / f"{n}.tar").read_text() == str(n) for copy in staged.copies for n in range(8)
        )


def test_strangers_get_nothing(tmp_path: Path, source: Path) -> None:
    """A node hears of no stream from one without the secret, and goes on to wait for the right one."""
    with nodes(tmp_path, source, 1) as staged:
        staged.root.gather([staged.item])
        (node,) = staged.root.nodes.values()
        with pytest.raises(OSError, match=r"another program answers there|closed|timed out|reset"):
            on_node.call(["127.0.0.1"], node.port, bytes(31) + b"x")


def test_what_killed_processes_have_left_goes(tmp_path: Path) -> None:
    """Copies of other jobs that nobody uses go; those that are in use, kept by a pool, or others may write to, stay."""
    own = tmp_path / (staged_copy.PREFIX % os.geteuid() + "7")
    jobs = {name: own.with_name(own.name[:-1] + name) for name in ("dead", "used", "kept", "strange")}
    copies = {name: staged_copy.StagedCopy(str(path / "key"), "run") for name, path in jobs.items()}
    for copy in copies.values():
        copy.take(keeps=False)
        copy.release()
    copies["used"].use()
    jobs["strange"].chmod(0o777)
    with open(jobs["kept"] / staged_copy.KEEPER, "w") as keeper:
        fcntl.flock(keeper, fcntl.LOCK_EX)
        staged_copy.clear_dead(str(own))
    assert {name for name, path in jobs.items() if not path.exists()} == {"dead"}


def test_disk_that_nodes_share_takes_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes would write the same files there."""
    copy = staged_copy.StagedCopy(str(tmp_path / "key"), "run")
    assert copy.why_not_here() == ""
    monkeypatch.setattr(folders, "mounts", lambda _root: [("/", "lustre")])
    assert copy.why_not_here().endswith("lies on lustre, which nodes share")
