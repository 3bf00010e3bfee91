"""What a script for one device writes, is written once by two ranks, whole, and as one device writes it."""

import http.server
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tests import warm
from tests.conftest import FOREIGN
from tests.tiers import in_all

TRAIN = """
import os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(0)
x = torch.randn(48, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
def train(data, **options):
    for a, b in DataLoader(data, batch_size=8, **options):
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss
"""


class Done(NamedTuple):
    """What a run said and left behind."""

    returncode: int
    out: str
    err: str
    files: dict[str, bytes]
    rank_logs: list[str]


def run(folder: Path, script: str, *, num_ranks: int, environ: dict[str, str] | None = None) -> Done:
    """Run a script on some ranks; on 0 it is Python alone."""
    work, logs = folder / f"on-{num_ranks}", folder / f"run-{num_ranks}"
    work.mkdir()
    (folder / "script.py").write_text(script)
    command: list[str] = []
    if num_ranks:
        command += ["-m", "echelon", "run", "-n", str(num_ranks), "--scale", "data", "--timeout", "60"]
        command += ["--run-dir", str(logs)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    # a script that reads RANK by its name is one that knows of ranks
    environ = {**clean, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder), "WHO": "RANK", **(environ or {})}
    done = warm.run([*command, str(folder / "script.py")], cwd=work, environ=environ, timeout=100)
    files = {str(path.relative_to(work)): path.read_bytes() for path in sorted(work.rglob("*")) if path.is_file()}
    rank_logs = [path.read_text() for path in sorted(logs.glob("logs/attempt-0/rank-*.log"))]
    return Done(done.returncode, done.stdout, done.stderr, files, rank_logs)


def same(folder: Path, script: str, *, are_bytes_equal: bool = True, **more: dict[str, str]) -> Done:
    """Run a script alone and on two ranks: equal output, on each rank, and equal files; return the two ranks."""
    alone, scaled = (run(folder, script, num_ranks=num_ranks, **more) for num_ranks in (0, 2))
    assert (alone.returncode, scaled.returncode) == (0, 0), alone.err + scaled.err + "".join(scaled.rank_logs)
    assert scaled.out == alone.out
    for each in scaled.rank_logs:
        assert alone.out in each.replace("\r", ""), each
    assert list(scaled.files) == list(alone.files)
    if are_bytes_equal:
        assert scaled.files == alone.files
    return scaled


def test_texts_and_tables(tmp_path: Path) -> None:
    """open(), pathlib, JSON, CSV and logging write what one device writes; all ranks read it at once, and count."""
    same(
        tmp_path,
        """
import csv, json, logging, os, pathlib, torch
folder = pathlib.Path("out") / "deep"
folder.mkdir(parents=True, exist_ok=True)
print(folder.exists(), os.listdir("out"))
print((folder / "a.txt").write_text("grün\\n"), (folder / "a.txt").read_text())
with open(folder / "b.json", "w") as file:
    json.dump({"b": 1}, file)
json.dump({"c": 1}, open("out/c.json", "w"))
print(json.load(open("out/c.json")), json.loads((folder / "b.json").read_bytes()))
with open("rows.csv", "w", newline="") as file:
    csv.writer(file).writerows([i, i * i] for i in range(5000))
    print(file.tell())
for i in range(5):
    with open("rows.csv", "a") as file:
        print(file.tell(), file.write("end\\n"), file.tell())
print(os.path.getsize("rows.csv"), len(open("rows.csv").readlines()))
with open("rows.csv", "r+") as file:
    print(file.readline(), file.seek(0), file.write("X"), file.seek(0), file.readline())
logging.basicConfig(filename="train.log", level=logging.INFO, format="%(message)s")
logging.info("one")
print(open("train.log").read())
pathlib.Path("touched").touch()
print(os.path.exists("touched"), sorted(os.listdir()))
os.remove("touched")
print(os.path.exists("touched"), [path.name for path in sorted(pathlib.Path().glob("*"))])
""",
    )


def test_arrays_and_archives(tmp_path: Path) -> None:
    """numpy, pickle, zipfile, tarfile, gzip and shutil: the same bytes, read back in the same script."""
    pytest.importorskip("numpy")
    same(
        tmp_path,
        """
import bz2, gzip, io, os, pickle, shutil, tarfile, zipfile
import numpy as np, torch
np.save("x.npy", np.arange(100000))
np.savez("y.npz", a=np.arange(3), b=np.eye(300))
np.savez_compressed("z.npz", a=np.arange(3))
np.savetxt("t.txt", np.eye(2))
np.arange(6).tofile("raw.bin")
print(np.load("x.npy").sum(), np.load("y.npz")["b"].sum(), np.loadtxt("t.txt"), np.fromfile("raw.bin", dtype=int))
mapped = np.memmap("m.dat", dtype="float32", mode="w+", shape=(100,))
mapped[:] = 3
mapped.flush()
print(mapped.sum(), np.memmap("m.dat", dtype="float32", mode="r").sum())
pickle.dump([1, 2], open("p.pkl", "wb"))
print(pickle.load(open("p.pkl", "rb")))
info = zipfile.ZipInfo("x", (2026, 1, 1, 0, 0, 0))
for mode in "wa":
    with zipfile.ZipFile("z.zip", mode) as archive:
        info.filename = mode
        archive.writestr(info, "content of " + mode)
with zipfile.ZipFile("z.zip") as archive:
    print(archive.namelist(), archive.read("a"))
    archive.extractall("unpacked")
print(sorted(os.listdir("unpacked")))
with tarfile.open("t.tar", "w") as archive:
    member = tarfile.TarInfo("deep/member")
    member.size = 3
    archive.addfile(member, io.BytesIO(b"abc"))
safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 is the first to have it
tarfile.open("t.tar").extractall("untarred", **safely)
print(open("untarred/deep/member").read())
with gzip.GzipFile("g.gz", "w", mtime=0) as file:
    file.write(b"packed")
with bz2.open("b.bz2", "wb") as file:
    file.write(b"packed")
print(gzip.open("g.gz").read(), bz2.open("b.bz2").read())
print(shutil.copy("x.npy", "copied.npy"), shutil.copytree("unpacked", "again"), shutil.move("again", "moved"))
print(sorted(os.listdir()))
shutil.rmtree("moved")
print(os.path.isdir("moved"))
with open("w.bin", "w+b") as file:
    print(file.write(b"abcdef"), file.seek(2), file.read(2), file.write(b"ZZ"), file.seek(0), file.read())
    os.fsync(file.fileno())
with open("w.bin", "ab") as file:
    print(file.tell(), file.write(b"!"), file.tell())
    file.flush()
    os.fsync(file.fileno())
    os.fdatasync(file)
""",
    )


def test_errors_are_those_of_the_rank_that_writes(tmp_path: Path) -> None:
    """What fails on the disk fails on every rank with the error that one device gets."""
    same(
        tmp_path,
        """
import os, shutil, torch
os.mkdir("out")
for act in (
    lambda: open("missing/x", "w"),
    lambda: os.mkdir("out"),
    lambda: os.makedirs("out"),
    lambda: os.remove("nothing"),
    lambda: os.rename("nothing", "something"),
    lambda: shutil.copy("nothing", "something"),
    lambda: open("out", "x"),
    lambda: open("f", "wr"),
    lambda: torch.save(1, "missing/x"),
):
    try:
        act()
    except (OSError, ValueError, LookupError, RuntimeError) as error:
        print(type(error).__name__, str(error).splitlines()[0])
""",
    )


def test_shared_memory_is_a_disk(tmp_path: Path) -> None:
    """A folder in /dev/shm is written once; what has the number of a process in its name is of that process."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        same(
            tmp_path,
            f"""
import os, pathlib, torch
folder = pathlib.Path({folder!r}, pathlib.Path.cwd().name)
(folder / "checkpoints").mkdir(parents=True)
for i in range(5):
    torch.save(torch.full((100_000,), i), folder / "checkpoints/last.pt")
    print(torch.load(folder / "checkpoints/last.pt").sum().item(), sorted(os.listdir(folder)))
own = pathlib.Path(f"/dev/shm/pool-{{os.getpid()}}-0")
own.write_text(str(os.getpid()))
print(own.read_text() == str(os.getpid()))
own.unlink()
""",
        )


def test_modules_are_looked_through_once(tmp_path: Path) -> None:
    """A second look, in each rank, would copy every page of PyTorch: what was seen before the fork is seen."""
    script = """
        patches = sys.modules["_echelon.train.patches"]
        seen = [id(each) for each in patches._namespaces]
        print(len(seen) > 1000, len(seen) - len(set(seen)) < 100)  # some modules have two names
    """
    done = run(tmp_path, TRAIN + textwrap.dedent(script), num_ranks=2)
    assert (done.returncode, done.out) == (0, "True True\n"), done.err


def test_large_file_is_whole_when_it_is_read(tmp_path: Path) -> None:
    """A rank that does not write waits for 20 MB to be on the disk, whoever reads them and however."""
    same(
        tmp_path,
        """
import mmap, os, torch
tensor = torch.arange(5_000_000)
for turn in range(3):
    torch.save(tensor + turn, "big.pt")
    print(os.path.getsize("big.pt"), torch.equal(torch.load("big.pt"), tensor + turn))
    with open("big.bin", "wb") as file:
        for part in (tensor + turn).split(1_000_000):
            file.write(part.numpy().tobytes())
    found = os.open("big.bin", os.O_RDONLY)  # as a library does that is not written in Python
    print(os.fstat(found).st_size, torch.from_file("big.bin", size=5_000_000, dtype=torch.int64)[-1].item())
    os.close(found)
    os.replace("big.bin", "last.bin")
    print(os.path.exists("big.bin"), os.stat("last.bin").st_size)
""",
    )


def test_file_that_nobody_closed_is_opened_again(tmp_path: Path) -> None:
    """To write on, to read and change, to write anew: each is one act, and no rank waits for another kind of it."""
    same(
        tmp_path,
        """
import torch
open("log.txt", "w").write("a")
with open("log.txt", "a") as file:
    file.write("b")
open("log.txt", "a").write("c")
print(open("log.txt").read())
left = open("log.txt", "a")
left.write("d")
left.flush()
with open("log.txt", "r+") as file:
    print(file.read(), file.seek(0), file.write("e"))
with open("log.txt", "w+") as file:
    print(file.write("f"), file.seek(0), file.read())
print(open("log.txt").read())
""",
    )


def test_mapped_file_is_read_when_it_is_written(tmp_path: Path) -> None:
    """What is written to a file in memory, which nobody sees, is there for all ranks, however late rank 0 writes."""
    pytest.importorskip("numpy")
    same(
        tmp_path,
        """
import os, time, torch
import numpy as np
for number, mode in enumerate(["w+", "r+"]):
    mapped = np.memmap("m.dat", dtype="float32", mode=mode, shape=(100,))
    if os.environ.get(os.environ["WHO"]) == "0":
        time.sleep(0.5)
    mapped[:] = 3 + number
    print(np.memmap("m.dat", dtype="float32", mode="r").sum(), np.fromfile("m.dat", dtype="float32").sum())
""",
    )


@pytest.mark.parametrize("name", ["snapshot.pt", "new.pt"])
def test_snapshot_is_kept_until_the_next_is_whole(tmp_path: Path, name: str) -> None:
    """A run that is ended in the midst of torch.save() still has the last snapshot, and no file that is torn."""
    done = run(
        tmp_path,
        TRAIN
        + """
class Fails:
    def __reduce__(self):
        os.write(1, b"in the midst" + bytes([10]))
        os._exit(3)

os.mkdir("kept")
os.symlink("kept/one.pt", "snapshot.pt")
for step, loss in enumerate(train(TensorDataset(x, x[:, :1]))):
    torch.save({"step": step, "model": model.state_dict()}, "snapshot.pt")
    os.chmod("snapshot.pt", 0o640)
    if step == 3:
        torch.save({"large": torch.zeros(1_000_000), "fails": Fails()}, "NAME")
""".replace("NAME", name),
        num_ranks=2,
    )
    assert done.returncode == 3, done.err
    assert "in the midst" in done.out
    kept = tmp_path / "on-2" / "kept" / "one.pt"
    assert torch.load(kept)["step"] == 3
    assert kept.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "on-2" / "snapshot.pt").is_symlink()
    assert not (tmp_path / "on-2" / "new.pt").exists()


def test_scripted_model_is_saved_by_one_rank(tmp_path: Path) -> None:
    """The save() of a scripted model writes once, and the file is that of one device."""
    same(
        tmp_path,
        TRAIN
        + """
scripted = torch.jit.script(model)
for loss in train(TensorDataset(x, x[:, :1])):
    pass
scripted.save("scripted.pt")
print(sorted(torch.jit.load("scripted.pt").state_dict()), len(os.listdir(".")))
""",
        are_bytes_equal=False,
    )


def test_full_disk_has_its_name(tmp_path: Path) -> None:
    """What torch.save() calls an iostream error is a full disk; rank 0, which wrote, is named, and nothing is torn."""
    script = (
        TRAIN
        + """
from echelon.train.files import writers  # the disk of this test is not full
writers.FULL_BYTES = 1 << 60

class Fails:
    def __reduce__(self):
        raise RuntimeError("basic_ios::clear: iostream error")

for step, loss in enumerate(train(TensorDataset(x, x[:, :1]))):
    torch.save({"model": model.state_dict(), "fails": Fails()}, "new.pt")
"""
    )
    done = run(tmp_path, script.replace("echelon.train", "_echelon.train"), num_ranks=2)
    assert done.returncode == 1
    assert "rank 0 on" in done.err.partition("failed first: no space left on the disk")[0].splitlines()[-1], "".join(
        (done.err, *done.rank_logs)
    )
    assert "No space left on device: " in done.err
    assert not list((tmp_path / "on-2").glob("new.pt*"))


def test_disk_stands_still_while_a_slower_rank_looks(tmp_path: Path) -> None:
    """A rank that comes late still sees the disk as it was before the next change."""
    same(
        tmp_path,
        """
import os, time, torch
late = float(os.environ.get(os.environ["WHO"], "0")) * 0.5
if os.path.exists("other"):
    late = 0
time.sleep(late)
if not os.path.exists("first"):
    os.mkdir("first")
    print("made")
for number in range(3):
    time.sleep(late / 2)
    print(sorted(os.listdir("first")), os.path.exists("last.pt"))
    torch.save(torch.ones(1), "last.pt")
    os.replace("last.pt", f"first/{number}.pt")
    for old in sorted(os.listdir("first"))[:-1]:
        os.remove(os.path.join("first", old))
""",
    )


def test_names_with_the_time_and_the_process(tmp_path: Path) -> None:
    """Ranks that name a folder by the time or the process share that of rank 0, and find what is in it."""
    script = """
import os, pathlib, time, uuid, torch
for name in (time.strftime("%Y%m%d-%H%M%S") + f"-{time.time_ns()}", f"{os.getpid()}", uuid.uuid4().hex):
    folder = pathlib.Path("runs") / name
    folder.mkdir(parents=True)
    torch.save(torch.ones(2), folder / "model.pt")
    (folder / "notes.txt").write_text("x")
    print(torch.load(folder / "model.pt"), (folder / "notes.txt").read_text(), sorted(os.listdir(folder)))
print(len(os.listdir("runs")))
"""
    scaled = run(tmp_path, script, num_ranks=2)
    assert scaled.returncode == 0, scaled.err
    assert len(scaled.files) == 6
    assert all(log.endswith("3\n") for log in scaled.rank_logs)


def test_temporary_files_are_each_ranks_own(tmp_path: Path) -> None:
    """What tempfile names is found again by the rank that made it, and only one is moved to where all look."""
    scaled = same(
        tmp_path,
        """
import os, tempfile, torch
with tempfile.TemporaryDirectory() as folder:
    torch.save(torch.ones(2), os.path.join(folder, "a.pt"))
    print(torch.load(os.path.join(folder, "a.pt")), os.listdir(folder))
print(os.path.exists(folder))
file = tempfile.NamedTemporaryFile(dir=".", delete=False)
file.write(b"content")
file.close()
os.replace(file.name, "final")
handle, name = tempfile.mkstemp(dir=".")
with os.fdopen(handle, "w") as file:
    file.write("more")
os.rename(name, "more")
print(open("final").read(), open("more").read(), sorted(os.listdir(".")))
""",
    )
    assert list(scaled.files) == ["final", "more"]


def test_samples_that_are_cached(tmp_path: Path) -> None:
    """A dataset that writes what it has computed finds it on the rank that needs it, with and without workers."""
    same(
        tmp_path,
        TRAIN
        + """
import time
class Slow:
    def __reduce__(self):
        time.sleep(0.1)  # half of a file is there meanwhile, and other ranks look for it
        return dict, ()
class Cached(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        if not os.path.exists("slow.pt"):
            torch.save([torch.zeros(9), Slow()], "slow.pt")
        torch.load("slow.pt", weights_only=False)
        os.makedirs("cache", exist_ok=True)
        path = f"cache/{index}.pt"
        if not os.path.exists(path):
            torch.save(x[index], path)
            with open(f"cache/{index}.txt", "w") as file:
                file.write("x")
        return torch.load(path), torch.load(path).sum(0, keepdim=True)
for options in ({}, {"num_workers": 2}, {"shuffle": True}):
    for loss in train(Cached(), **options):
        pass
    print(f"{loss.item():.4f}", len(os.listdir("cache")))
model.eval()
print(sum(len(a) for a, b in DataLoader(Cached(), batch_size=5)))
""",
        are_bytes_equal=False,  # torch.save stores the name that it wrote to
    )


def test_log_of_the_first_step_is_not_written_twice(tmp_path: Path) -> None:
    """The comparison with one device, which is a fork of rank 0 with open files, leaves no trace in them."""
    same(
        tmp_path,
        TRAIN
        + """
import logging
logging.basicConfig(filename="train.log", level=logging.INFO, format="%(message)s")
log = open("steps.txt", "w")
log.write("begin\\n")
for step, loss in enumerate(train(TensorDataset(x, x.sum(1, keepdim=True)))):
    log.write(f"{step}\\n")
    log.flush()
    logging.info("step %d", step)
    with open("appended.txt", "a") as file:
        file.write(f"{step}\\n")
    open(f"step-{step}", "w").close()
log.close()
""",
    )


@pytest.mark.parametrize("kind", ["fork", "thread"])
def test_files_of_other_processes_and_threads(tmp_path: Path, kind: str) -> None:
    """What a pool has written is there when it has ended."""
    pool = 'multiprocessing.get_context("fork").Pool(2)' if kind == "fork" else "ThreadPoolExecutor(2)"
    same(
        tmp_path,
        f"""
import multiprocessing, os, time, torch
from concurrent.futures import ThreadPoolExecutor
os.mkdir("parts")
def write(number):
    time.sleep(0.2)
    with open(f"parts/{{number}}", "w") as file:
        file.write("x" * number)
with {pool} as pool:
    list(pool.map(write, range(6)))
print(sorted(os.listdir("parts")), [len(open(f"parts/{{number}}").read()) for number in range(6)])
""",
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve an archive and a state on the loopback interface, and count what is asked for."""
    import torch

    asked: list[str] = []
    source = tmp_path / "served"
    source.mkdir()
    with zipfile.ZipFile(source / "data.zip", "w") as archive:
        archive.writestr("data/a.txt", "a")
        archive.writestr("data/b.txt", "b")
    torch.save({"weight": torch.ones(1)}, source / "state-0123.pt")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(source))  # type: ignore[arg-type, misc]

        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}", asked
    listening.shutdown()
    thread.join()
    listening.server_close()


def test_downloads(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    """What is fetched and unpacked if it is not there, is fetched once; what cannot be fetched fails on all ranks."""
    url, asked = server
    script = """
import os, pathlib, shutil, sys, urllib.error, urllib.request, zipfile, torch
url = os.environ["URL"]
if not os.path.exists("data"):
    urllib.request.urlretrieve(url + "/data.zip", "data.zip")
    with zipfile.ZipFile("data.zip") as archive:
        archive.extractall()
    os.remove("data.zip")
print(sorted(os.listdir("data")))
print(torch.hub.load_state_dict_from_url(url + "/state-0123.pt", model_dir="hub", progress=False))
torch.hub.download_url_to_file(url + "/state-0123.pt", "state.pt", progress=False)
print(torch.load("state.pt"))
shutil.unpack_archive(shutil.make_archive("packed", "tar", "data"), "again")
print(sorted(os.listdir("again")))
try:
    urllib.request.urlretrieve(url + "/missing", "missing")
except urllib.error.HTTPError as error:
    print(error.code, error)
os.remove("packed.tar")
print(os.system("echo said once > said.txt"), open("said.txt").read())
"""
    same(tmp_path, script, are_bytes_equal=False, environ={"URL": url})
    once = sorted(["/data.zip", "/state-0123.pt", "/state-0123.pt", "/missing"])
    assert sorted(asked) == sorted(once * 2)


def test_ranks_that_part(tmp_path: Path) -> None:
    """Ranks that come to different files, because they decide on something of their own, are told so."""
    script = """
import os, torch
torch.save(torch.ones(1), "last.pt" if os.environ.get(os.environ["WHO"]) else "best.pt")
torch.save(torch.ones(1), "best.pt" if os.environ.get(os.environ["WHO"]) == "1" else "last.pt")
"""
    scaled = run(tmp_path, script, num_ranks=2)
    assert scaled.returncode != 0
    assert "the ranks went different ways: rank 0 reaches torch.save" in scaled.err
    assert "last.pt, but rank 1 reaches torch.save" in scaled.err


@pytest.mark.parametrize("rank", [0, 1])
def test_failing_rank_does_not_wait(tmp_path: Path, rank: int) -> None:
    """A rank that fails with files open, and writes a report of it, ends the run with its own error."""
    script = f"""
import os, torch
with open("log.txt", "w") as file:
    try:
        if os.environ.get(os.environ["WHO"]) == "{rank}":
            raise ValueError("a sample is broken")
        torch.save(1, "a.pt")
        torch.save(1, "b.pt")
    except ValueError:
        torch.save("what was saved", "crash.pt")
        with open("crash.txt", "w") as report:
            report.write("x")
        raise
"""
    scaled = run(tmp_path, script, num_ranks=2)
    assert scaled.returncode == 1
    assert f"rank {rank} on" in scaled.err
    assert "ValueError: a sample is broken" in scaled.err


def test_rank_that_logs_alone(tmp_path: Path) -> None:
    """What one rank alone warns of does not make it wait for the others, whatever the log does with files."""
    script = """
import logging, logging.handlers, os, threading, warnings, torch
handler = logging.handlers.RotatingFileHandler("train.log", maxBytes=100, backupCount=2)
logging.basicConfig(handlers=[handler], level=logging.INFO, format="%(message)s")
logging.captureWarnings(True)
for step in range(10):
    logging.info("step %d of all", step)
    if os.environ.get(os.environ["WHO"]) == "1":
        logging.warning("a bad sample, which no other rank has")
        warnings.warn("and another")
        thread = threading.Thread(target=lambda: open("bad.txt", "w").close())
        thread.start()
        thread.join()
    torch.save(step, "step.pt")
    print(torch.load("step.pt"), os.path.exists("train.log"))
"""
    scaled = run(tmp_path, script, num_ranks=2)
    assert scaled.returncode == 0, scaled.err + "".join(scaled.rank_logs)
    assert scaled.out == "".join(f"{step} True\n" for step in range(10))
    assert list(scaled.files) == ["step.pt", "train.log", "train.log.1"]
    assert b"bad" not in b"".join(scaled.files.values())


@pytest.mark.tier("all")
def test_databases(tmp_path: Path) -> None:
    """SQLite and HDF5 hold each row once, and every rank reads its own."""
    pytest.importorskip("h5py")
    pytest.importorskip("numpy")
    same(
        tmp_path,
        """
import os, sqlite3, torch, h5py
for turn in range(2):
    base = sqlite3.connect("results.db")
    base.execute("create table if not exists rows (n integer)")
    base.executemany("insert into rows values (?)", [(1,), (2,)])
    print(base.execute("select count(*) from rows").fetchall())
    base.commit()
    base.close()
    with h5py.File("data.h5", "a") as file:
        file[f"a{turn}"] = torch.arange(100_000).numpy()
        print(sorted(file), file["a0"][-1])
    with h5py.File("data.h5") as file:
        print(sorted(file), file["a0"][:].sum())
with h5py.File("new.h5", "w") as file:
    file.create_dataset("x", data=[1, 2])
print(h5py.File("new.h5", "r")["x"][1], sorted(os.listdir()))
""",
        are_bytes_equal=False,  # HDF5 stores times
    )


def test_safetensors(tmp_path: Path) -> None:
    """The file that Rust writes is written once, and read at once by Rust."""
    pytest.importorskip("safetensors")
    same(
        tmp_path,
        """
import os, torch
from safetensors.torch import load_file, save_file
from safetensors import safe_open
for turn in range(3):
    save_file({"a": torch.full((2_000_000,), turn)}, "m.safetensors")
    print(load_file("m.safetensors")["a"].sum(), os.path.getsize("m.safetensors"))
    with safe_open("m.safetensors", "pt") as file:
        print(file.get_tensor("a")[-1])
""",
    )


def test_figures(tmp_path: Path) -> None:
    """A figure is drawn into one file."""
    pytest.importorskip("matplotlib")
    same(
        tmp_path,
        """
import matplotlib, torch
matplotlib.use("Agg")
import matplotlib.pyplot as plt
plt.plot([1, 2, 3])
plt.savefig("a.png")
plt.savefig("a.svg")
print(plt.imread("a.png").shape)
""",
        are_bytes_equal=False,  # the SVG has the date in it
        environ={"MPLCONFIGDIR": str(tmp_path / "matplotlib")},
    )


TENSORBOARD = """
with SummaryWriter("events") as writer:
    for step, loss in enumerate(train(TensorDataset(x, x.sum(1, keepdim=True)))):
        writer.add_scalar("loss", loss, step)
        writer.add_scalar("mean", loss.detach() + 1, step)
        writer.add_histogram("weights", model.weight, step)
        writer.flush()
other = SummaryWriter()
folder = getattr(other, "log_dir", None) or other.logdir
torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
print(os.path.exists(os.path.join(folder, "model.pt")), len(os.listdir("events")))
other.close()
"""


@pytest.mark.parametrize("package", ["torch.utils.tensorboard", in_all("tensorboardX")])
def test_tensorboard(tmp_path: Path, package: str) -> None:
    """Every event is there once, and the default folder is the same for all ranks."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip(package)
    scaled = run(tmp_path, TRAIN + f"from {package} import SummaryWriter\n" + TENSORBOARD, num_ranks=2)
    assert scaled.returncode == 0, scaled.err + "".join(scaled.rank_logs)
    assert scaled.out == "True 1\n"
    assert len(scaled.files) == 3
    events = accumulator.EventAccumulator(str(tmp_path / "on-2" / "events"), {"histograms": 0}).Reload()
    for tag in ("loss", "mean"):
        assert [event.step for event in events.Scalars(tag)] == list(range(6))
    assert len(events.Histograms("weights")) == 6


def test_bars_count_and_are_shown_once(tmp_path: Path) -> None:
    """A progress bar counts on every rank, and is drawn by one."""
    pytest.importorskip("tqdm")
    scaled = run(
        tmp_path,
        TRAIN
        + """
from tqdm import tqdm
with tqdm(train(TensorDataset(x, x.sum(1, keepdim=True))), desc="training") as bar:
    for loss in bar:
        bar.set_postfix(loss=f"{loss.item():.3f}")
    print(bar.n)
""",
        num_ranks=2,
    )
    assert (scaled.returncode, scaled.out) == (0, "6\n"), scaled.err
    assert "training" in scaled.err
    assert ["training" in log for log in scaled.rank_logs] == [True, False]


@pytest.mark.tier("all")
def test_weights_and_biases(tmp_path: Path) -> None:
    """One run is begun, whatever mode the script asks for, and losses are logged to it once."""
    pytest.importorskip("wandb")
    scaled = run(
        tmp_path,
        TRAIN
        + """
import wandb
run = wandb.init(project="test", mode="offline", config={"lr": 0.1})
for loss in train(TensorDataset(x, x.sum(1, keepdim=True))):
    wandb.log({"loss": loss})
    run.log({"again": loss.detach()})
print(run.config["lr"])
wandb.finish()
""",
        num_ranks=2,
    )
    assert (scaled.returncode, scaled.out) == (0, "0.1\n"), scaled.err + "".join(scaled.rank_logs)
    assert len([name for name in scaled.files if name.endswith(".wandb")]) == 1


@pytest.mark.tier("all")
def test_mlflow(tmp_path: Path) -> None:
    """One run is tracked, with each metric once."""
    pytest.importorskip("mlflow")
    scaled = run(
        tmp_path,
        TRAIN
        + """
import mlflow
mlflow.set_tracking_uri("sqlite:///tracked.db")
with mlflow.start_run():
    mlflow.log_param("lr", 0.1)
    for step, loss in enumerate(train(TensorDataset(x, x.sum(1, keepdim=True)))):
        mlflow.log_metric("loss", loss.item(), step=step)
print("done")
""",
        num_ranks=2,
    )
    assert (scaled.returncode, scaled.out) == (0, "done\n"), scaled.err + "".join(scaled.rank_logs)
    import sqlite3

    base = sqlite3.connect(tmp_path / "on-2" / "tracked.db")
    assert base.execute("select count(*) from runs").fetchone() == (1,)
    assert base.execute("select count(*) from metrics").fetchone() == (6,)
    base.close()


def on_two_nodes(folder: Path, script: str, own_disk: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run two ranks, each as if on a node of its own: the second has another disk at one folder."""
    (folder / "script.py").write_text(script)
    start = (
        "import runpy, sys; from echelon.orders.scale import DEFAULT; from echelon.train import start; "
        "start.start_hooked(DEFAULT); runpy.run_path(sys.argv[1])"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    begun = []
    for rank in range(2):
        environ = {**clean, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS="1", DISK=str(own_disk))
        python = [sys.executable, "-c", start, str(folder / "script.py")]
        mount = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$DISK" && exec "$@"', "sh"]
        begun.append(
            subprocess.Popen(
                [*(mount if rank else []), *python],
                cwd=folder,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        ended = [(*process.communicate(), process) for process in begun]
    finally:
        for process in begun:
            process.kill()
    return [subprocess.CompletedProcess(one.args, one.returncode, out, err) for out, err, one in ended]


def can_mount(folder: Path) -> bool:
    """Say whether a folder can be given another disk for one process."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_nodes_with_disks_of_their_own(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    """What goes to a disk of the node is fetched and written once on each; what goes to a shared one, once."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not can_mount(disk):
        pytest.skip("needs the right to mount")
    url, asked = server
    script = f"""
import os, shutil, sys, urllib.request, zipfile, torch
for folder in (os.environ["DISK"], "shared"):
    os.makedirs(folder, exist_ok=True)
    data = os.path.join(folder, "data.zip")
    if not os.path.exists(data):
        urllib.request.urlretrieve("{url}/data.zip", data)
        zipfile.ZipFile(data).extractall(folder)
    print(sorted(os.listdir(folder)), sorted(os.listdir(os.path.join(folder, "data"))))
    for turn in range(2):
        torch.save(torch.full((3,), turn), os.path.join(folder, "a.pt"))
        print(torch.load(os.path.join(folder, "a.pt")))
        with open(os.path.join(folder, "log.txt"), "a") as file:
            print(file.write("x\\n"), file.tell())
        print(open(os.path.join(folder, "log.txt")).readlines())
    shutil.copy(os.path.join(folder, "a.pt"), os.path.join(folder, "b.pt"))
    os.remove(os.path.join(folder, "a.pt"))
    print(sorted(os.listdir(folder)))
"""
    one, other = on_two_nodes(tmp_path, script, disk)
    assert (one.returncode, other.returncode) == (0, 0), one.stderr + other.stderr
    assert one.stdout == other.stdout
    assert one.stdout.count("['b.pt', 'data', 'data.zip', 'log.txt']") == 2
    assert asked == ["/data.zip"] * 3
    assert sorted(os.listdir(disk)) == sorted(os.listdir(tmp_path / "shared"))
