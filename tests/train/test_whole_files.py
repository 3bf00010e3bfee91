"""A process that is killed while it writes a file leaves the old file or none, whatever writes it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy
import pytest
from tests.tiers import product
from tests.train.test_files import TRAIN, run

from echelon.train.files import whole

DEADLY = """
import json, pickle, signal, sys, threading
import numpy as np
from pathlib import Path

class Deadly:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)

class DeadlyText(float):
    def __repr__(self):
        os.kill(os.getpid(), signal.SIGKILL)

def kill_when_written():
    if not os.fork():
        while True:
            for folder, _, names in os.walk("."):
                for name in names:
                    if os.lstat(os.path.join(folder, name)).st_size > 1 << 16:
                        os.kill(os.getppid(), signal.SIGKILL)
                        os._exit(0)

large, zeros = "x" * (1 << 20), np.zeros(1 << 18)
objects = np.array([Deadly()], dtype=object)
"""
WRITERS = {
    "torch.save": "torch.save({'a': torch.zeros(1 << 18), 'b': Deadly()}, 'new.bin')",
    "torch.save, open file": "torch.save({'a': torch.zeros(1 << 18), 'b': Deadly()}, open('new.bin', 'wb'))",
    "torch.save, thread": """
thread = threading.Thread(target=torch.save, args=({'a': torch.zeros(1 << 18), 'b': Deadly()}, 'new.bin'))
thread.start()
thread.join()""",
    "legacy": "torch.save([large, Deadly()], 'new.bin', _use_new_zipfile_serialization=False)",
    "numpy.save": "np.save('new.bin.npy', np.array([large, Deadly()], dtype=object))",
    "numpy.savez": "np.savez('new.bin', zeros=zeros, objects=objects)",
    "pickle": "pickle.dump([large, Deadly()], open('new.bin', 'wb'))",
    "text": "json.dump([large, Deadly()], open('new.bin', 'w'), default=lambda one: one.__reduce__())",
    "pathlib": "file = Path('new.bin').open('w'); file.write(large); Deadly().__reduce__()",
    "safetensors": """
from safetensors.torch import save_file
kill_when_written()
for number in range(1000):
    save_file({'a': torch.zeros(1 << 22)}, 'new.bin')""",
}


@product(writer=WRITERS, num_ranks=[1, 2])
def test_killed_writer(tmp_path: Path, writer: str, num_ranks: int) -> None:
    """A file of a new name appears when it is whole; what the killed process left is hidden from `glob("*")`."""
    begin = "" if num_ranks == 1 else "list(train(TensorDataset(x, x[:, :1])))\n"
    done = run(tmp_path, TRAIN + DEADLY + begin + WRITERS[writer], num_ranks=num_ranks)
    assert "killed by a signal: SIGKILL" in done.err, done.err
    visible = [path for path in (tmp_path / f"on-{num_ranks}").iterdir() if not path.name.startswith(".")]
    if writer == "safetensors" and visible:
        from safetensors.torch import load_file

        assert load_file(visible[0])["a"].shape == (1 << 22,)
    else:
        assert visible == []
    assert list(done.files) != [] or writer == "safetensors"  # the process was killed in the midst


def opened(path: Path, mode: str = "w", buffering: int = -1) -> "whole.Any":
    return whole.opened(open, path, mode, buffering, None, None, None, True, None)


def test_file_that_is_flushed_is_shown(tmp_path: Path) -> None:
    """A log appears when its writer flushes it; an empty file appears when it is closed."""
    path = tmp_path / "log"
    with opened(path) as file:
        file.flush()
        assert not path.exists()
        file.write("a line\n")
        file.flush()
        assert path.read_text() == "a line\n"
        file.write("another\n")
    assert path.read_text() == "a line\nanother\n"
    assert [each.name for each in tmp_path.iterdir()] == ["log"]


def test_file_that_is_written_with_pauses_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that is written over a long time is a log."""
    monkeypatch.setattr(whole, "TEXT_PAUSE_SECONDS", 0.0)
    with opened(tmp_path / "log") as file:
        file.write("x" * (1 << 20))
        assert (tmp_path / "log").exists()


def test_error_keeps_the_old_file(tmp_path: Path) -> None:
    """An exception in the midst of bytes keeps the old snapshot, and leaves nothing beside it."""
    path = tmp_path / "snapshot"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with pytest.raises(ZeroDivisionError), opened(path, "wb") as file:
        file.write(b"new")
        file.write(b"%d" % (1 // 0))
    assert path.read_bytes() == b"old"
    with opened(path, "wb") as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["snapshot"]


def test_what_is_written_in_its_place(tmp_path: Path) -> None:
    """A pipe, a hard link and a line-buffered file are written as Python writes them; errors name the script's path."""
    path = tmp_path / "one"
    path.write_text("old")
    os.link(path, tmp_path / "two")
    with opened(path) as file:
        file.write("new")
    assert (tmp_path / "two").read_text() == "new"
    with opened(tmp_path / "lines", buffering=1):
        assert (tmp_path / "lines").exists()
    with opened(Path(os.devnull)) as file:
        file.write("nothing")
    assert not Path(os.devnull).is_file()
    with pytest.raises(FileNotFoundError, match="no-folder/file'"):
        opened(tmp_path / "no-folder" / "file")


def test_left_files_are_removed(tmp_path: Path) -> None:
    """The next process that writes into a folder removes what killed processes have left there, and nothing else."""
    script = """
    import os, sys
    sys.path.insert(0, {source!r})
    from echelon.train.files import whole
    file = whole.opened(open, "new", "wb", -1, None, None, None, True, None)
    file.write(bytes(1 << 20))
    if sys.argv[1] == "die":
        os.kill(os.getpid(), 9)
    file.close()
    """
    source = textwrap.dedent(script.format(source=str(Path(whole.__file__).parents[3])))
    alive = tmp_path / f".mine.{whole._here()}-{os.getpid()}-123456.partial"
    alive.touch()
    died, ended = (
        subprocess.run([sys.executable, "-c", source, how], cwd=tmp_path, check=False) for how in ("die", "end")
    )
    assert (died.returncode, ended.returncode) == (-signal.SIGKILL, 0)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([alive.name, "new"])


def test_one_rank_writes_what_python_writes(tmp_path: Path) -> None:
    """All modes, files that nobody closes, and tracebacks are those of Python alone."""
    script = (
        TRAIN
        + """
import json, subprocess
import numpy as np
torch.save(model.state_dict(), "model.pt")
np.save("without-suffix", np.arange(4))
np.savez("many", a=np.arange(4))
with open("result.json", "w") as file:
    json.dump({"a": 1}, file)
with open("output.txt", "w") as file:
    subprocess.run(["echo", "from a child"], stdout=file)
kept = open("never-closed.txt", "w")
kept.write("the end")
log = open("log.txt", "w")
print("a line", file=log, flush=True)
print(open("log.txt").read(), os.listdir(".") == sorted(os.listdir(".")) or "listed")
open("missing.txt")
"""
    )
    alone, one = (run(tmp_path, script, num_ranks=num_ranks) for num_ranks in (0, 1))
    assert alone.files == one.files
    assert alone.returncode == one.returncode == 1
    assert "/echelon/" not in one.rank_logs[0]
    assert json.loads(one.files["result.json"]) == {"a": 1}
    assert "never-closed.txt" in one.files
    assert numpy.load(tmp_path / "on-1" / "without-suffix.npy").sum() == 6
