"""Draw the terminals of the pages: `make pictures` runs each scene in a real terminal and writes it as an SVG.

A scene runs in a container of bubblewrap, where the machine is called "laptop" and the folder is /home/me/training, so
that lines break where they break for a reader, and nothing of this machine is shown.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
HOME = "/home/me/training"
SECONDS = 900
TRAIN = """import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

torch.manual_seed(0)
images = torch.randn(2048, 1, 24, 24)
labels = images.mean((1, 2, 3)).gt(0).long()
loader = DataLoader(TensorDataset(images, labels), batch_size=128, shuffle=True)
conv = torch.nn.Conv2d(32, 32, 3)
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 32, 5), torch.nn.ReLU(), conv, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(10368, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for epoch in range(3):
    bar = tqdm(loader, desc=f"epoch {epoch}", ncols=72)
    for x, y in bar:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")
"""
SHARDS = """import os
import time

rank = int(os.environ["RANK"])
for step in range(3):
    if rank == 0:
        print("step", step, flush=True)
    time.sleep(0.2)
with open(f"data/shard-{rank}.bin", "rb") as file:
    file.read()
time.sleep(60)
"""
PAGE = FOLDER.parent / "bench.md"
JOB = """#!/bin/bash
#SBATCH --account=project_465000000
#SBATCH --partition=standard-g
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --time=3-00:00:00

export MASTER_ADDR=localhost
export NCCL_SOCKET_IFNAME=hsn
export MIOPEN_USER_DB_PATH=/tmp/$USER-miopen
srun python train.py
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A command, the files that it finds, and the width of its terminal."""

    command: str
    files: Mapping[str, str] = field(default_factory=dict)
    columns: int = 80


def fleet() -> dict[str, str]:
    """Return the files of a generated run of 24 nodes, of which one is lost, and one rank slow."""
    sys.path.insert(0, str(ROOT))
    from tests.monitor.watch.fleet import write

    with tempfile.TemporaryDirectory() as name:
        run = write(Path(name) / "run", num_nodes=24, ranks_per_node=8, samples=40, slow=77, lost=20)
        return {f"echelon-runs/20261128-081218-train-8f65/{file.name}": file.read_text() for file in run.iterdir()}


SCENES = {
    "run": Scene(command="echelon run -n 2 train.py", files={"train.py": TRAIN}),
    "failure": Scene(
        command="echelon run -n 4 train.py",
        files={"train.py": SHARDS, **{f"data/shard-{rank}.bin": "" for rank in (0, 1, 3)}},
    ),
    "plan": Scene(command="echelon plan --machine lumi --gpus 16 --time 12h --parameters 7B --dtype bf16", columns=100),
    "watch": Scene(command="echelon watch --once train-8f65", files=fleet()),
    "lint": Scene(command="echelon lint --machine lumi job.sh", files={"job.sh": JOB}, columns=100),
}

PLOTS = {"scaling": "echelon bench scaling --ranks 1,2,4 --repeat 2 --plot scaling train.py"}
"""Commands of docs/bench.md that draw NAME.png, with the script of the page."""

Cell = tuple[str, str]
"""A letter, and the codes of its colours."""


class Screen:
    """What a terminal shows after all that was written to it; it knows what echelon and progress bars use."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.lines: list[list[Cell]] = [[]]
        self.row = self.column = 0
        self.style = ""

    def write(self, text: str) -> None:
        for codes, final, plain in re.findall(r"\x1b\[([\d;?]*)([A-Za-z])|([^\x1b])", text):
            if plain:
                self._letter(plain)
            elif final == "m":
                self.style = "" if codes in ("", "0") else codes
            elif final == "A":
                self.row = max(0, self.row - int(codes or 1))
            elif final == "K":
                del self.lines[self.row][self.column if codes in ("", "0") else 0 :]

    def _letter(self, letter: str) -> None:
        if letter == "\r":
            self.column = 0
        elif letter == "\n":
            self._next_line()
        elif letter >= " ":
            if self.column == self.columns:
                self.column = 0
                self._next_line()
            line = self.lines[self.row]
            line += [(" ", "")] * (self.column + 1 - len(line))
            line[self.column] = (letter, self.style)
            self.column += 1

    def _next_line(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append([])

    def shown(self) -> list[list[Cell]]:
        """Return the lines, without the empty ones at the end."""
        lines = list(self.lines)
        while lines and not "".join(letter for letter, _ in lines[-1]).strip():
            lines.pop()
        return lines


LETTER, LINE, EDGE, TOP = 8.4, 19, 18, 44
HEAT = {"196": "#ff0000", "202": "#ff5f00", "208": "#ff8700", "214": "#ffaf00", "220": "#ffd700",
        "190": "#d7ff00", "154": "#afff00", "118": "#87ff00", "82": "#5fff00", "46": "#00ff00"}  # fmt: skip
GROUNDS = {"7": "#d8dee4", "1;37;41": "#da3633", "30;43": "#e3b341"}
DARK = ("7", "30;43")
COLOURS = {"31;1": "#ff7b72", "33;1": "#e3b341", "36": "#79c0ff", "1": "#ffffff", "prompt": "#7ee787", "": "#d8dee4"}


def colours(style: str) -> tuple[str, str]:
    """Return the colours of letters and of what is behind them; no colour behind: empty."""
    if style.startswith("30;48;5;"):
        return "#161b22", HEAT[style.removeprefix("30;48;5;")]
    if style in GROUNDS:
        return ("#161b22" if style in DARK else "#ffffff"), GROUNDS[style]
    return ("#8b949e" if style == "2" else COLOURS[style]), ""


def svg(lines: Sequence[Sequence[Cell]], columns: int) -> str:
    """Return a window with the lines; each word has its own place, so that columns stand in any font."""
    width, height = columns * LETTER + 2 * EDGE, len(lines) * LINE + TOP + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" width="{width:g}" height="{height}"'
        ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="14">',
        f'<rect width="{width:g}" height="{height}" rx="8" fill="#161b22" stroke="#6e7681"/>',
        *(f'<circle cx="{22 + 18 * index}" cy="20" r="5.5" fill="#6e7681"/>' for index in range(3)),
    ]
    for row, line in enumerate(lines):
        column = 0
        for style, cells in groupby(line, key=lambda cell: cell[1]):
            text = "".join(letter for letter, _ in cells)
            fill, behind = colours(style)
            if behind:
                parts.append(
                    f'<rect x="{EDGE + column * LETTER:.1f}" y="{TOP + row * LINE}" width="{len(text) * LETTER:.1f}"'
                    f' height="{LINE}" fill="{behind}"/>'
                )
            for found in re.finditer(r"\S+(?: \S+)*", text):
                weight = ' font-weight="bold"' if "1" in style.split(";") else ""
                parts.append(
                    f'<text x="{EDGE + (column + found.start()) * LETTER:.1f}" y="{TOP + 14 + row * LINE}"'
                    f' textLength="{len(found[0]) * LETTER:.1f}" lengthAdjust="spacingAndGlyphs"'
                    f' fill="{fill}"{weight} xml:space="preserve">{escape(found[0])}</text>'
                )
            column += len(text)
    return "\n".join([*parts, "</svg>", ""])


def contained(folder: Path, command: Sequence[str]) -> list[str]:
    """Return the command as it runs on "laptop" in /home/me/training, which is the folder."""
    home = str(folder / "home")
    return [
        "bwrap", "--dev-bind", "/", "/", "--bind", home, "/home", "--unshare-uts", "--hostname", "laptop",
        "--chdir", HOME, *command,
    ]  # fmt: skip


def played(scene: Scene) -> Screen:
    """Run a scene in a terminal of its width; return what that shows at the end."""
    screen = Screen(scene.columns)
    screen.style = "prompt"
    screen.write("$ ")
    screen.style = "1"
    screen.write(f"{scene.command}\r\n")
    screen.style = ""
    with tempfile.TemporaryDirectory() as name:
        for path, text in scene.files.items():
            file = Path(name) / "home" / "me" / "training" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (Path(name) / "home" / "me" / "training").mkdir(parents=True, exist_ok=True)
        screen.write(written(contained(Path(name), scene.command.split()), scene.columns))
    return screen


def written(command: Sequence[str], columns: int) -> str:
    """Return all that a command writes to a terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    kept = {name: os.environ[name] for name in ("LANG", "OMP_NUM_THREADS") if name in os.environ}
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = {
        **kept,
        "PATH": programs,
        "HOME": "/home/me",
        "TERM": "xterm-256color",
        "TZ": "UTC",
        "ECHELON_CHECK": "off",
    }
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as process:
        os.close(theirs)
        data = b""
        while True:
            try:
                more = os.read(ours, 1 << 16)
            except OSError:  # nobody has the terminal any more
                break
            data += more
        process.wait(SECONDS)
    os.close(ours)
    return data.decode("utf-8", "replace")


def plotted(name: str) -> None:
    """Run a command of docs/bench.md that draws, and keep its picture."""
    script = re.search(r"```python train.py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    if script is None:
        sys.exit(f"draw.py: {PAGE} has no train.py")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home" / "me" / "training"
        home.mkdir(parents=True)
        (home / "train.py").write_text(script[1])
        sys.stdout.write(written(contained(Path(folder), PLOTS[name].split()), 120))
        shutil.copy(home / f"{name}.png", FOLDER / f"{name}.png")


def draw(names: Sequence[str]) -> None:
    """Write the pictures that are named, or all."""
    if shutil.which("bwrap") is None:
        sys.exit("draw.py: bubblewrap is missing: tools/install-slurm")
    for name in names or (*SCENES, *PLOTS):
        if name in PLOTS:
            plotted(name)
            continue
        screen = played(SCENES[name])
        (FOLDER / f"{name}.svg").write_text(svg(screen.shown(), screen.columns), "utf-8")


if __name__ == "__main__":
    draw(sys.argv[1:])
