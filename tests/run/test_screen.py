"""Output at a terminal of 80 columns."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence

import pytest

from echelon.host import terminal
from echelon.launch.console import Console

from .shell import Shell

BAR = """
import sys, time
for step in range(3):
    sys.stderr.write(f"\\r{step}/3 [######]")
    sys.stderr.flush()
    time.sleep(0.1)
sys.exit(3)
"""


def screen(shell: Shell, words: Sequence[str], **environ: str) -> str:
    """Return all that `echelon` writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in shell.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-m", "echelon", *words], cwd=shell.folder, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**environment, "TERM": "xterm", **environ},
    ) as process:  # fmt: skip
        os.close(theirs)
        written = b""
        while True:
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # nobody has the terminal any more
                break
            if not data:
                break
            written += data
        process.wait(60)
    os.close(ours)
    return written.decode()


def test_lines_of_ours_begin_below_a_progress_bar(shell: Shell) -> None:
    """A bar that did not end its line stays whole, of one rank and of several; ours begins on the next."""
    shell.script(BAR)
    for line in (["run", "train.py"], ["run", "-n", "2", "--show", "all", "train.py"]):
        text = screen(shell, line)
        assert re.search(r"2/3 \[######\]\r?\r\n(\[1\] [^\n]*\r\n)?echelon: rank", text), text


@pytest.mark.parametrize("line", [["run", "train.py"], ["run", "-n", "2", "--show", "all", "train.py"]])
@pytest.mark.parametrize("pause", [0, 0.3])
def test_what_a_rank_says_of_echelon_stands_below_its_bar(shell: Shell, line: list[str], pause: float) -> None:
    """A message of ours behind a bar of a rank begins a new line, and breaks between words; the bar goes on."""
    words = " ".join(["echelon:", *(f"word{number}" for number in range(20))])
    shell.script(
        "import sys, time\n"
        "def show(text):\n"
        "    sys.stderr.write(text)\n"
        "    sys.stderr.flush()\n"
        f"    time.sleep({pause})\n"
        "show('\\r1/3 [##    ]')\n"
        f"show({words!r} + '\\n')\n"
        "show('\\r2/3 [####  ]')\n"
        "show('\\n')\n"
    )
    text = screen(shell, line)
    name = r"(?:\[[01]\] )?"
    assert re.search(rf"1/3 \[##    \]\r?\r\n{name}echelon: word0 word1 ", text), text
    assert re.search(rf"\r\n{name}  word\d+ (word\d+ )*word19\r\n", text), text
    assert re.search(r"(\n|\r|\x1b\[2K)(\[[01]\] )?2/3 \[####  \]", text), text  # which may stand in place of a status


def test_person_is_told_who_writes_files(shell: Shell) -> None:
    """At a terminal a scaled run says once that rank 0 alone writes files; a run that is not scaled does not."""
    shell.script("import os\nos.environ['RANK']\n")
    told = "only rank 0 writes files"
    assert told not in screen(shell, ["run", "-n", "2", "train.py"])
    shell.script("import torch\nmodel = torch.nn.Linear(1, 1)\n")
    assert screen(shell, ["run", "-n", "2", "--scale", "data", "train.py"]).count(told) == 1


@pytest.mark.parametrize(
    "line",
    ["run --help", "submit --help", "plan --help", "lint --help", "prove --help", "check --help", "machines --help",
     "machines", "completion --help", "plan --machine lumi --gpus 16 --why",
     "plan --machine lumi --gpus 16 --time 1h --parameters 7B --dtype bf16",
     "plan --machine roihu --gpus 40 --time 1h", "--help"],
)  # fmt: skip
def test_words_and_paths_are_whole(shell: Shell, line: str) -> None:
    """No line is wider than the terminal, unless it holds a word that is, or a command to paste."""
    for row in screen(shell, line.split()).replace("\r", "").split("\n"):
        text = re.sub(r"\x1b\[[\d;]*m", "", row)
        is_command = re.match(r"\s*(hint: |usage: |(\w+: |In .*: )?echelon (run|submit|plan|completion) )", text)
        assert len(text) <= 80 or is_command or len(text.split()) <= 2, row


def test_colour_is_for_terminals_that_want_it(shell: Shell) -> None:
    """An error is red on a terminal; NO_COLOR, a dumb terminal and a file get plain words, and no control codes."""
    line = ["run", "nothere.py"]
    assert "\x1b[31;1merror:\x1b[0m" in screen(shell, line)
    assert "\x1b" not in screen(shell, line, NO_COLOR="1")
    assert "\x1b" not in screen(shell, line, TERM="dumb")
    assert "\x1b" not in shell.fork("nothere.py").said
    shell.script("print(1 / 0)")
    assert "failed first: \x1b[31;1merror in the script\x1b[0m\r\n" in screen(shell, ["run", "train.py"])
    assert "failed first: error in the script\r\n" in screen(shell, ["run", "train.py"], NO_COLOR="1")
    shell.script("print(1)")
    assert "\x1b" not in screen(shell, ["run", "train.py"], TERM="dumb")


def test_wrapped_text_loses_nothing() -> None:
    """Wrapping breaks between words alone: the words are the same, and a table's last column stays a column."""
    text = "nodes  2  " + "a reason that takes more than one line " * 3 + "/a/path/" + "x" * 90
    lines = terminal.wrapped(text, width=60).split("\n")
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert {line[:10] for line in lines[1:]} == {" " * 10}
    assert terminal.wrapped("  hint: " + "word " * 30, width=40).count("\n") == 0


def test_progress_is_not_drawn_over_the_bar_of_a_rank(capfd: pytest.CaptureFixture[str]) -> None:
    """On a busy machine a rank may draw before the supervisor has heard that it runs."""
    console = Console(is_terminal=True)
    console.rank_output(0, "stderr", b"\r1/3 [##    ]")
    console.progress("starting · 0/1 ranks started")
    assert capfd.readouterr().err == "\r1/3 [##    ]"
    console.rank_output(0, "stderr", b"\n")
    console.progress("starting · 0/1 ranks started")
    assert capfd.readouterr().err.endswith("echelon: starting · 0/1 ranks started")


def test_next_attempt_begins_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    """A rank that died in the middle of a line does not share it with the next attempt; a whole line gets no other."""
    console = Console(is_terminal=False)
    console.rank_output(0, "stdout", b"loss 0.25")
    console.begin_attempt()
    console.rank_output(0, "stdout", b"loss 0.25\n")
    console.begin_attempt()
    assert capfd.readouterr().out == "loss 0.25\nloss 0.25\n"
