"""A start reads the user's script once, and every part of it asks the same value."""

import subprocess
import sys
from pathlib import Path

import pytest

from echelon.script.reading import ScriptReading, of_job, search_path_of_scripts
from echelon.spec import Command, Job

WATCHED = """
import os, sys
log = os.open("log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
def note(event, arguments):
    name = {"open": 0, "compile": 1}.get(event)
    if name is not None and str(arguments[name]).strip("<>").endswith("train.py"):
        os.write(log, event.encode() + b" ")
sys.addaudithook(note)
from echelon.cli import main
sys.exit(main())
"""


def test_a_start_opens_the_script_once(tmp_path: Path) -> None:
    """The options behind it, its imports, the traps of frameworks, lint and the way to scale: one open, one parse."""
    text = "import sys, torch\ndef never():\n    torch.save({}, 'model.pt')\nprint(sys.argv)\n"
    (tmp_path / "train.py").write_text(text)
    words = ["run", "--launch", "exec", "-n", "2", "train.py", "--show", "0"]
    done = subprocess.run([sys.executable, "-c", WATCHED, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "['train.py', '--show', '0']\n"
    assert sorted((tmp_path / "log").read_text().split()) == ["compile", "compile", "open"]  # its syntax, its tree


def test_every_part_is_kept(tmp_path: Path) -> None:
    """The script that vanishes after the first question is still known."""
    script = tmp_path / "train.py"
    script.write_text("import json\n")
    reading = ScriptReading(Command(kind="script", target="train.py"), cwd=str(tmp_path), search_path=())
    assert reading.script.content == b"import json\n"
    script.unlink()
    assert reading.imports.uses == {"json"}
    assert reading.source is not None
    assert reading.source.certain_imports == {"json": 1}


def test_what_cannot_be_read() -> None:
    """A program has no script, and the files of an image are not here."""
    assert of_job(Job(command=Command(kind="program", target="train"))) is None
    assert of_job(Job(command=Command(kind="module", target="train"), container="image.sif")) is None
    assert of_job(Job(command=Command(kind="script", target="train.py"), container="image.sif")) is not None


def test_search_path_of_scripts_is_that_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script finds what is installed; the folder of the command, and the one in which it stands, are not its own."""
    monkeypatch.setattr(sys, "argv", ["/opt/bin/echelon"])
    monkeypatch.setattr(sys, "path", ["", "/opt/bin", "/opt/lib/python3.12", "/opt/lib/python3.12/site-packages"])
    assert search_path_of_scripts() == ["/opt/lib/python3.12", "/opt/lib/python3.12/site-packages"]
