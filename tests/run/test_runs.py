"""`echelon runs` and `echelon clean`: run directories are found by short names, and removed when they are over."""

import os
import subprocess

from tests import warm

from .shell import Shell


def echelon(shell: Shell, *words: str) -> subprocess.CompletedProcess[str]:
    return warm.run(["-m", "echelon", *words], cwd=shell.folder, environ=shell.environ)


def name_of_last(said: str) -> str:
    """Return what the last line of a run calls it."""
    return said.rstrip().rpartition(" · run ")[2]


def test_last_line_names_the_run(shell: Shell) -> None:
    """The name in the last line finds the run, and so do its path and a part of the name; it fits into 80 columns."""
    shell.script("raise SystemExit(3)\n")
    done = shell.fork("train.py")
    name = name_of_last(done.said)
    assert len(done.said.splitlines()[-1]) < 80
    (path,) = os.listdir(shell.folder / "echelon-runs")
    for word in (
        name,
        path,
        f"echelon-runs/{path}",
        f"echelon-runs/{name}",
        name[-4:],
        str(shell.folder / "echelon-runs" / path),
    ):
        shown = echelon(shell, "runs", word)
        assert shown.returncode == 0, shown.stderr
        assert f"{name}  failed (3)" in shown.stdout
        assert f"echelon-runs/{path}/logs" in shown.stdout
    unknown = echelon(shell, "runs", "fit-0000")
    assert (unknown.returncode, f"the latest runs are {name}" in unknown.stderr) == (2, True)


def test_agents_program_is_one_file_for_all_runs(shell: Shell) -> None:
    """The second run links to the node.pyz of the first, and a run takes kilobytes."""
    shell.script("")
    for _ in range(2):
        assert shell.fork("train.py").exit_code == 0
    archives = list((shell.folder / "echelon-runs").glob("*/node.pyz"))
    assert len(archives) == 2
    assert archives[0].samefile(archives[1])
    assert all(" KiB" in line for line in echelon(shell, "runs").stdout.splitlines()[1:])


def test_clean_removes_what_is_over(shell: Shell) -> None:
    """Old runs go and the newest stay; a run that is going is refused; the user's own files stay."""
    shell.script("")
    names = [name_of_last(shell.fork("train.py").said) for _ in range(3)]
    dry = echelon(shell, "clean", "--keep", "1", "--dry-run")
    assert dry.stdout.count("echelon-runs/") == 2
    assert len(os.listdir(shell.folder / "echelon-runs")) == 3
    assert echelon(shell, "clean", "--older-than", "1h").stdout == ""
    (kept,) = (path for path in (shell.folder / "echelon-runs").iterdir() if path.name.endswith(names[0]))
    (kept / "weights.pt").write_bytes(b"x")
    done = echelon(shell, "clean", "--keep", "1")
    assert f"kept {names[0]}: it holds weights.pt, which echelon has not written" in done.stderr
    assert sorted(path.name[16:] for path in (shell.folder / "echelon-runs").iterdir()) == sorted([names[0], names[2]])
    assert echelon(shell, "clean", "--with-files", names[0]).returncode == 0
    assert not kept.exists()


def test_running_run_is_not_removed(shell: Shell) -> None:
    """A run that is going on is listed as such, and stays."""
    shell.script("import sys\nprint('up', flush=True)\nimport time\ntime.sleep(60)\n")
    with shell.start("train.py") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert "  running  " in echelon(shell, "runs").stdout
        refused = echelon(shell, "clean", "train")
        assert (refused.returncode, "is not removed: it is running" in refused.stderr) == (2, True), refused.stderr
        assert "kept train-" in echelon(shell, "clean", "--keep", "0").stderr
        assert process.poll() is None
        process.terminate()


def test_nothing_is_removed_unasked(shell: Shell) -> None:
    """Without a name, an age or a number nothing is chosen."""
    done = echelon(shell, "clean")
    assert (done.returncode, "echelon clean --older-than 7d" in done.stderr) == (2, True)
    assert echelon(shell, "runs").stdout == "echelon-runs/ of this folder has no runs\n"
