"""`%%echelon` in a real kernel of Jupyter: output, errors, variables, interrupts; and echelon.launch()."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from docs.pictures.notebook_page import CELLS
from jupyter_client.manager import KernelManager, start_new_kernel
from tests.run.shell import wait_until

TRAINING = CELLS[1].partition("\n")[2]


class Kernel:
    """A kernel in a folder of its own, as a notebook has one."""

    def __init__(self, folder: Path) -> None:
        sources = str(Path(__file__).parents[2] / "src")
        environ = {**os.environ, "PYTHONPATH": sources, "ECHELON_POOL": str(folder / "pool")}
        self.manager: KernelManager
        self.manager, self.client = start_new_kernel(kernel_name="python3", cwd=str(folder), env=environ)
        self.folder = folder
        self.run("%load_ext echelon")

    def run(self, text: str, seconds: float = 60.0, until: str = "") -> tuple[str, str]:
        """Run a cell; return its output, and the text of its error. An interrupt follows the text `until`."""
        asked = self.client.execute(text)
        output, error, deadline = "", "", time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                message: Any = self.client.get_iopub_msg(timeout=1)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            output += content.get("text", "") if kind == "stream" else ""
            error += "\n".join(content["traceback"]) if kind == "error" else ""
            if until and until in output:
                until = ""
                self.manager.interrupt_kernel()
            if kind == "status" and content["execution_state"] == "idle":
                return output, error
        raise AssertionError(f"the cell did not end within {seconds:g} s: {output}")

    def close(self) -> None:
        self.run("!{__import__('sys').executable} -m echelon pool stop")
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    """Give a test a kernel."""
    opened = Kernel(tmp_path)
    yield opened
    opened.close()


def test_cell_trains_and_gives_its_variables(kernel: Kernel) -> None:
    """The variables of rank 0 are those of a cell of one process; a second cell starts from the pool."""
    output, error = kernel.run(f"%%echelon -n 2 --fetch losses,loss,model\n{TRAINING}")
    assert (error, "scaled over 2 ranks" in output) == ("", True)
    shown = "print([round(one, 4) for one in losses], round(loss.item(), 4), round(model['bias'].item(), 4))"
    fetched, _ = kernel.run(shown)
    alone, _ = kernel.run(f"{TRAINING}\nmodel = model.state_dict()\n{shown}")
    assert fetched == alone.removeprefix("trained 16 steps\n") != ""
    output, error = kernel.run(
        "%%echelon -n 2 --fetch rank -- --lr 0.1\nimport os, sys\nrank = [os.environ['RANK'], *sys.argv[1:]]"
    )
    assert (error, kernel.run("print(rank)")[0]) == ("", "['0', '--lr', '0.1']\n")
    assert not list(kernel.folder.glob(".cell-*"))


def test_errors_of_a_cell(kernel: Kernel) -> None:
    """A failing rank is shown as the console shows it, with the line of the cell; wrong words are one error."""
    output, error = kernel.run("%%echelon -n 2\nprint('first')\n1 / 0")
    assert "\nfirst\nTraceback (most recent call last):\n" in output
    assert "line 3, in <module>\n    1 / 0" in output
    assert error == "echelon: the run ended with exit code 1; its output is above"
    for line, said in (
        ("-n 2 --bid off", "has no option --bid"),
        ("train.py", "the cell is the script"),
        ("-n 2 --fetch 1x", "not a variable"),
        ("-n '2", "No closing quotation"),
        ("-n 2 --fetch missing", "missing cannot be fetched: the cell has no such variable at its end"),
        ("-n 2 --fetch made", "made cannot be fetched: without PyTorch, JSON has no place for"),
    ):
        _, error = kernel.run(f"%%echelon {line}\nmade = object()")
        assert error.startswith("echelon: error: ") and said in error and "\n  hint: " in error, line


def test_interrupted_cell(kernel: Kernel) -> None:
    """An interrupt of the kernel ends the ranks as Ctrl-C does; the kernel goes on, with its variables."""
    kernel.run("kept = 1")
    output, error = kernel.run("%%echelon -n 2\nimport time\nprint('begun', flush=True)\ntime.sleep(60)", until="begun")
    assert "SIGINT stopped the run" in output
    assert "KeyboardInterrupt" in error
    assert kernel.run("print(kept)")[0] == "1\n"


def test_function_of_a_file(tmp_path: Path) -> None:
    """echelon.launch() returns what rank 0 returns; what cannot be run or fetched is one error."""
    (tmp_path / "sums.py").write_text(
        "import os\n\ndef total(number):\n    return number * int(os.environ['WORLD_SIZE'])\n\n"
        "def fails():\n    raise ValueError('wrong')\n"
    )
    (tmp_path / "main.py").write_text(
        "import echelon, sums\nfrom echelon.errors import EchelonError\n"
        "print(echelon.launch(sums.total, ranks=3, args=[2]))\n"
        "for function, args in ((lambda: 0, []), (sums.total, [object()]), (sums.fails, [])):\n"
        "    try:\n        echelon.launch(function, 2, args, ['--no-pool'])\n"
        "    except EchelonError as error:\n        print(type(error).__name__, error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(("6", "UsageError", "RanksFailed"))]
    assert lines[0] == "6", done.stderr
    assert lines[1].startswith("UsageError <lambda> cannot be imported by ranks")
    assert lines[2].startswith("UsageError args of total: ")
    assert lines[3] == "RanksFailed the run ended with exit code 1; its output is above"
    assert "ValueError: wrong" in done.stdout


def test_run_of_a_killed_process_ends(tmp_path: Path) -> None:
    """If the process of launch() is killed, its ranks end; two threads that launch at once get their own results."""
    (tmp_path / "waits.py").write_text(
        "import os, time\n\ndef same(value):\n    return value\n\n"
        "def forever():\n    open(f'{os.getpid()}.pid', 'w').close()\n    time.sleep(300)\n"
    )
    (tmp_path / "main.py").write_text(
        "import echelon, threading, waits\nresults = {}\n"
        "def launch(value):\n    results[value] = echelon.launch(waits.same, 1, [value], ['--no-pool'])\n"
        "threads = [threading.Thread(target=launch, args=[value]) for value in range(3)]\n"
        "[thread.start() for thread in threads]\n[thread.join() for thread in threads]\n"
        "assert results == {0: 0, 1: 1, 2: 2}, results\n"
        "echelon.launch(waits.forever, 1, [], ['--no-pool'])\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    with subprocess.Popen([sys.executable, "main.py"], cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: list(tmp_path.glob("*.pid")), seconds=60)
        process.kill()
    (pid,) = (int(path.stem) for path in tmp_path.glob("*.pid"))
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), seconds=60)
