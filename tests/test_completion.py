"""Completion: the scripts that `echelon completion` prints, in the real shells, without echelon in PATH."""

import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from echelon.cli import COMMANDS, completion
from echelon.cli import help as helps
from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.shells import bash
from echelon.machines import load

TAB = "\t"


def need(shell: str) -> str:
    path = shutil.which(shell)
    if path is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            f"there is no {shell} here: tools/install-slurm"
        )
    return path or ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as of a user: scripts, runs, and what is no run; beside it the script of each shell."""
    (tmp_path / "work").mkdir()
    for name in completion.SHELLS:
        (tmp_path / f"echelon.{name}").write_text(completion.script(name))
    for run in ("20261125-100253-train-b53a", "20261125-100254-big job-aaaa", "20261125-100255-$(touch pwned)-cccc"):
        (tmp_path / "work" / "echelon-runs" / run).mkdir(parents=True)
        (tmp_path / "work" / "echelon-runs" / run / "events.jsonl").write_text("")
    (tmp_path / "work" / "echelon-runs" / "20261125-100256-other-dddd").mkdir()
    for file in ("train.py", "train.txt", "my job.sh"):
        (tmp_path / "work" / file).write_text("")
    return tmp_path / "work"


def environ(folder: Path) -> dict[str, str]:
    return {"PATH": "/usr/bin", "HOME": str(folder), "ZDOTDIR": str(folder), "TERM": "dumb", "LC_ALL": "C.UTF-8"}


def offered(folder: Path, *lines: list[str], script: str = "../echelon.bash") -> list[list[str]]:
    """Return what bash offers for each line, of which the last word is being typed."""
    text = [f"source {script}"]
    for words in lines:
        text += [f"COMP_WORDS=({shlex.join(['echelon', *words])}) COMP_CWORD={len(words)}", "_echelon"]
        text += ['(IFS="|"; echo "${COMPREPLY[*]}")']
    done = subprocess.run(
        [need("bash"), "--norc", "-c", "\n".join(text)],
        cwd=folder, env=environ(folder), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.split("|") if line else [] for line in done.stdout.splitlines()]


LINES: tuple[tuple[list[str], list[str]], ...] = (
    (["su"], ["submit"]),
    (["run", "--sc"], ["--scale", "--scale-lr"]),
    (["run", "--launch", ""], ["warm", "exec", "tasks"]),
    (["run", "--scale", "=", "f"], ["fsdp"]),
    (["run", "--scale", "="], ["auto", "off", "data", "fsdp", "tensor", "context", "pipeline", "auto-fit"]),
    (["prove", "--scale", "data,f"], ["data,fsdp"]),
    (["plan", "--optimizer", "ad"], ["adamw", "adam"]),
    (["plan", "--gpus", ""], []),
    (["lint", "--format", "s"], ["sarif"]),
    (["lint", "--explain", "ECH101"], ["ECH101"]),
    (["lint", "train.py", "--str"], ["--strict"]),
    (["check", "--machine", "lu"], ["lumi"]),
    (["machines", "l"], ["leonardo", "local", "lumi", "learn"]),
    (["frameworks", "deep"], ["deepspeed"]),
    (["runs", "t"], ["train-b53a"]),
    (["clean", "big"], ["big job-aaaa"]),
    (["run", "-n", "2", "tr"], ["train.py"]),
    (["run", "--run-dir", ""], ["echelon-runs"]),
    (["run", "--gpus-per-node", "2", "--", "base6"], ["base64"]),
    (["run", "-n", "2", "train.py", "--sc"], []),
    (["exec", "--visible", "o"], ["own"]),
    (["exec", "base6"], ["base64"]),
    (["completion", ""], ["bash", "zsh", "fish"]),
    (["nothing", ""], []),
)


def test_bash_offers_what_can_stand_there(folder: Path) -> None:
    """Commands, options, choices of an option, machines, runs, scripts, programs; nothing of ours behind a script."""
    assert offered(folder, *(line for line, _ in LINES)) == [expected for _, expected in LINES]
    (runs,) = offered(folder, ["runs", ""])
    assert set(runs) == {"train-b53a", "big job-aaaa", "$(touch pwned)-cccc"}
    assert not (folder / "pwned").exists()


def names_in_help(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return the options that `--help` explains."""
    print(helps.of(command).text())
    explained = capsys.readouterr().out.partition(helps.IGNORED)[0]
    lines = re.findall(r"^  (-[^\s].*?)(?:  |$)", explained, re.M)
    return {word for line in lines for word in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", line)}


def test_each_option_of_each_help_is_offered(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a help explains, bash, zsh and fish know; and what a help names, its command reads."""
    told = {command: names_in_help(command, capsys) for command in COMMANDS}
    assert len(told["run"]) > 40
    texts = {shell: completion.script(shell) for shell in completion.SHELLS}
    for command, options in zip(COMMANDS, offered(folder, *([command, "-"] for command in COMMANDS)), strict=True):
        assert told[command] == set(options), command
        for name in told[command]:
            kind = "long" if name.startswith("--") else "short"
            line = rf"'__echelon_at {command} options'.* --{kind} {name.lstrip('-')}( |$)"
            assert re.search(line, texts["fish"], re.M), (command, name)
        case = texts["zsh"].split(f"                {command}) ")[1].split(" ;;")[0]
        assert told[command] == set(re.findall(r"'\*(-[\w-]+?)[=+]?\[", case)), command


def test_new_option_needs_no_other_change(tmp_path: Path) -> None:
    """A row in the table of a command is enough: its name, its choices, and that a value follows."""
    row = Option(names=("--colour",), value="NAME", choices=("red", "green"), help="a colour")
    command = Help(command="paint", about="", groups=(("options", (row,)),), example="")
    (tmp_path / "new.bash").write_text(bash.script([command]))
    lines = (["pa"], ["paint", "--c"], ["paint", "--colour", "g"])
    assert offered(tmp_path, *lines, script="new.bash") == [["paint"], ["--colour"], ["green"]]


def typed(argv: list[str], keys: list[str], folder: Path, seconds: float = 30.0) -> str:
    """Type at the prompt of a shell in a terminal; return what it shows up to its end."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execve(argv[0], argv, environ(folder))
    shown, end = b"", time.monotonic() + seconds
    try:
        for key in [*keys, "exit\n"]:
            while time.monotonic() < end and not shown.rstrip().endswith(b"READY>"):
                shown += read(terminal)
            os.write(terminal, key.encode())
            shown += b"\n" + read(terminal)
        while time.monotonic() < end and (more := read(terminal)):
            shown += more
    finally:
        os.close(terminal)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    return shown.decode("utf-8", "replace")


def read(terminal: int) -> bytes:
    """Return what comes within a moment; empty at the end."""
    if not select.select([terminal], [], [], 2)[0]:
        return b""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


KEYS = [
    f"echelon plan --opti{TAB}\n",
    f"echelon run --scale=f{TAB}\n",
    f"echelon runs t{TAB}\n",
    f"echelon lint my{TAB}\n",
    f"echelon run train.py --config my{TAB}\n",
]
ZSHRC = "autoload -Uz compinit; compinit -u -D\nunset zle_bracketed_paste\nunsetopt prompt_sp\nPS1='READY> '\n"
PRINTS = "echelon() { printf '<%s>' \"$@\"; echo; }\n"


def test_tab_in_a_real_bash(folder: Path) -> None:
    """A person presses Tab: the word is completed, readline's = included, and files where a file is wanted."""
    (folder / "rc").write_text(
        f"source ../echelon.bash\n{PRINTS}PS1='READY> '\nbind 'set enable-bracketed-paste off'\n"
    )
    shown = typed([need("bash"), "--rcfile", "rc", "-i"], KEYS, folder)
    for words in EXPECTED:
        assert words in shown, shown


EXPECTED = ("<plan><--optimizer", "<run><--scale=fsdp>", "<runs><train-b53a>", "<lint><my job.sh>",
            "<run><train.py><--config><my job.sh>")  # fmt: skip


def test_tab_in_a_real_zsh(folder: Path) -> None:
    """The same in zsh."""
    zsh = need("zsh")
    (folder / ".zshrc").write_text(f"{ZSHRC}source ../echelon.zsh\n{PRINTS}")
    shown = typed([zsh, "-i"], KEYS, folder)
    for words in EXPECTED:
        assert words in shown, shown


def test_zsh_finds_the_script_in_its_folder(folder: Path) -> None:
    """As _echelon in a folder of fpath, the file completes too."""
    zsh = need("zsh")
    shutil.copy(folder.parent / "echelon.zsh", folder / "_echelon")
    (folder / ".zshrc").write_text(f"fpath=($PWD $fpath)\n{ZSHRC}{PRINTS}")
    assert EXPECTED[1] in typed([zsh, "-i"], KEYS[1:2], folder)


FISH = (
    ("echelon su", ["submit"]),
    ("echelon plan --opti", ["--optimizer"]),
    ("echelon run --scale=f", ["--scale=fsdp"]),
    ("echelon prove --scale data,f", ["data,fsdp"]),
    ("echelon plan --machine lu", ["lumi"]),
    ("echelon runs t", ["train-b53a"]),
    ("echelon run -n 2 train.py --sc", []),
    ("echelon run train.py --config my", ["my job.sh"]),
    ("echelon lint my", ["my job.sh"]),
    ("echelon machines le", ["learn", "leonardo"]),
)


def test_fish_offers_what_can_stand_there(folder: Path) -> None:
    """The same in fish, which says what it would offer."""
    text = "source ../echelon.fish\n" + "\n".join(f"echo ==; complete -C {shlex.quote(line)}" for line, _ in FISH)
    done = subprocess.run(
        [need("fish"), "--no-config", "-c", text],
        cwd=folder, env=environ(folder), capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    answers = [[row.partition("\t")[0] for row in part.splitlines() if row] for part in done.stdout.split("==\n")[1:]]
    assert answers == [expected for _, expected in FISH]


def test_machines_of_a_user_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script is written with the machines that are known where it is written."""
    (tmp_path / "mine.toml").write_text('name = "mymachine"\n')
    monkeypatch.setenv("ECHELON_MACHINES", str(tmp_path / "mine.toml"))
    assert "mymachine" in load.names(os.environ)
    assert "mymachine" in completion.script("bash")


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A shell that echelon does not know is named, and those that it knows."""
    from echelon.cli import main

    assert main(["completion", "tcsh"]) == 2
    assert "tcsh: the choices are bash, zsh, fish" in capsys.readouterr().err
