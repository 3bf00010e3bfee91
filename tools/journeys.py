"""Count the files of src on two ways: from the command line to a rank's first line, and from a batch to a step.

    python tools/journeys.py [SRC]

A copy of src notes the functions that are called in a real `echelon run -n 2`: in the command, the agent, the warm
process and the ranks. What runs while a module is imported is on no way, nor what is called after the first line,
nor what watches the run and the script beside it: it comes to more files where the ranks start slowly.
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
WAYS = {"start": "from the command line to a rank's first line", "step": "from a batch to a step"}
ENTRIES = ("__init__.py", "node/__main__.py", "node/start_hook.py")
"""The first module of each process."""
BESIDE = ("lint/", "monitor/", "launch/lookouts.py", "launch/samples.py")
PROLOGUE = """
import os as _os
if "JOURNEY" in _os.environ:
    with open(_os.environ["JOURNEY"] + "/notes.py") as _file:
        exec(_file.read(), {})
"""
NOTES = """
import os, sys, threading

folder = os.environ["JOURNEY"]
source, script, mark = folder + "/src/echelon/", folder + "/train.py", folder + "/first_line"
way, seen, plain_open = ["start"], set(), open  # that of a scaled script is hooked
OPTIMIZED = 1  # the flag of functions; modules and classes do not have it


def is_import(frame):
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(source) and not code.co_flags & OPTIMIZED:
            if not code.co_filename.endswith(("/start_hook.py", "/__main__.py")):
                return True
        frame = frame.f_back
    return False


def note(frame, event, _):
    code = frame.f_code
    if event != "call":
        return
    if code.co_filename == script and code.co_name in ("first_line", "step_began", "step_made"):
        way[:] = ["step"] if code.co_name == "step_began" else []
        seen.clear()
        plain_open(folder + "/" + code.co_name, "w").close()
    elif way and code.co_filename.startswith(source) and code.co_filename not in seen and code.co_flags & OPTIMIZED:
        if way == ["start"] and os.path.exists(mark):
            way.clear()
        elif not is_import(frame):
            seen.add(code.co_filename)
            with plain_open("%s/%s-%d" % (folder, way[0], os.getpid()), "a") as file:
                file.write(code.co_filename[len(source):] + "\\n")


threading.setprofile(note)
sys.setprofile(note)
"""
SCRIPT = """
import torch

def first_line(): pass
def step_began(): pass
def step_made(): pass

first_line()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
for number, (inputs, targets) in enumerate(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)):
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if number in (5, 6):
        step_began() if number == 5 else step_made()
"""


def count(source: Path) -> dict[str, list[str]]:
    """Return the files on each way, those of one process after the other."""
    with tempfile.TemporaryDirectory(prefix="journey-") as folder:
        room = Path(folder, "src", "echelon")
        shutil.copytree(source / "echelon", room, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ENTRIES:
            _add_prologue(room / name)
        Path(folder, "notes.py").write_text(NOTES)
        Path(folder, "train.py").write_text(SCRIPT)
        environ = {**os.environ, "JOURNEY": folder, "PYTHONPATH": f"{folder}/src", "XDG_CACHE_HOME": folder}
        command = [sys.executable, "-m", "echelon", "run", "-n", "2", f"{folder}/train.py"]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
        if done.returncode or not Path(folder, "step_made").exists():
            raise SystemExit(f"the run has failed:\n{done.stdout}{done.stderr}")
        return {way: _union(sorted(Path(folder).glob(f"{way}-*"), key=os.path.getmtime)) for way in WAYS}


def _union(notes: list[Path]) -> list[str]:
    files = dict.fromkeys(line for path in notes for line in path.read_text().splitlines())
    return [name for name in files if not name.startswith(BESIDE)]


def _add_prologue(path: Path) -> None:
    """Put the prologue after the docstring and the imports from the future."""
    text = path.read_text()
    first = [node for node in ast.parse(text).body[:2] if isinstance(node, (ast.Expr, ast.ImportFrom))]
    is_first = isinstance(first[-1], ast.Expr) or first[-1].module == "__future__"
    place = first[-1 if is_first else 0].end_lineno
    lines = text.splitlines(keepends=True)
    path.write_text("".join([*lines[:place], PROLOGUE, *lines[place:]]))


def main(arguments: list[str]) -> None:
    """Print both numbers with their files."""
    for way, files in count(Path(arguments[0]) if arguments else ROOT / "src").items():
        rooms = Counter(name.partition("/")[0] for name in files)
        print(f"{WAYS[way]}: {len(files)} files ({', '.join(f'{room} {number}' for room, number in rooms.items())})")
        print("".join(f"  {name}\n" for name in files), end="")


if __name__ == "__main__":
    main(sys.argv[1:])
