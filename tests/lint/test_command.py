"""`echelon lint` as a person starts it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.lint import table
from echelon.lint.pages import all_pages

CLEAN = "import torch\nprint(torch.ones(1))\n"
WARNED = "import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(2, 2))\n"
WRONG = "#!/bin/bash\nif [ $A -eq 2 ] then\n  true\nfi\n"


def lint(folder: Path, *arguments: str, given: bytes = b"") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "echelon", "lint", *arguments], cwd=folder, input=given, capture_output=True, check=False
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [(CLEAN, (), 0), (WARNED, (), 0), (WARNED, ("--strict",), 1), ("def f(:\n", (), 1)],
)
def test_exit_code_says_whether_something_is_wrong(
    tmp_path: Path, text: str, options: tuple[str, ...], code: int
) -> None:
    """0 without errors, 1 with one, and with --strict for warnings too."""
    (tmp_path / "train.py").write_text(text)
    assert lint(tmp_path, *options, "train.py")[0] == code


def test_report_shows_the_line_and_a_caret(tmp_path: Path) -> None:
    """The finding stands with its place, the source line, a mark below the word and the repair."""
    (tmp_path / "job.sh").write_text(WRONG)
    code, out, _ = lint(tmp_path, "--machine", "lumi", "job.sh")
    assert code == 1
    assert out.splitlines() == [
        "job.sh",
        "",
        "  error[ECH303] the shell reads then as an argument: put a ; before it",
        "  2 │ if [ $A -eq 2 ] then",
        "    │                 ^^^^",
        "    = repair: ; then",
        "",
        "1 error in 1 file, judged for lumi; --fix repairs 1; echelon lint --explain ECH303 gives the reason",
    ]


def test_worst_comes_first(tmp_path: Path) -> None:
    """The file with an error stands before the one with a warning, and in it the error first."""
    (tmp_path / "a.py").write_text(WARNED)
    (tmp_path / "b.py").write_text(WARNED + "def f(:\n")
    (tmp_path / "c.sh").write_text("#!/bin/bash\nexport NCCL_P2P_DISABLE=1\nNODES = 4\n")
    _, out, _ = lint(tmp_path, "--json", "a.py", "b.py", "c.sh", "--machine", "lumi")
    found = [(each["path"], each["severity"]) for each in json.loads(out)["findings"]]
    assert found == [("b.py", "error"), ("c.sh", "error"), ("c.sh", "warning"), ("a.py", "warning")]


def test_json_holds_everything(tmp_path: Path) -> None:
    """A program gets place, text, repair, reason and source of every finding."""
    (tmp_path / "job.sh").write_text(WRONG)
    _, out, _ = lint(tmp_path, "--json", "--machine", "lumi", "job.sh")
    report = json.loads(out)
    assert report["format"] == 1 and report["machines"] == ["lumi"]
    assert report["counts"] == {"error": 1, "warning": 0, "note": 0}
    (found,) = report["findings"]
    assert (found["code"], found["line"], found["column"], found["text"]) == ("ECH303", 2, 17, "if [ $A -eq 2 ] then")
    assert found["repair"] == "; then" and found["why"] and found["source"]


@pytest.mark.parametrize(
    "comment",
    [
        "if [ $A -eq 2 ] then # echelon: ignore[ECH303] on purpose",
        "# echelon: ignore[ECH999, ECH303]\nif [ $A -eq 2 ] then",
    ],
)
def test_comment_silences_one_rule(tmp_path: Path, comment: str) -> None:
    """A comment on the line, or above it, silences the rule that it names there, and says so."""
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n{comment}\n  true\nfi\n")
    code, out, _ = lint(tmp_path, "--machine", "lumi", "job.sh")
    assert (code, "1 silenced" in out) == (0, True)


def test_comment_for_another_rule_silences_nothing(tmp_path: Path) -> None:
    """A comment that names another rule does not count."""
    (tmp_path / "job.sh").write_text("#!/bin/bash\nif [ $A -eq 2 ] then # echelon: ignore[ECH304]\n  true\nfi\n")
    assert lint(tmp_path, "--machine", "lumi", "job.sh")[0] == 1


def test_standard_input_is_a_script(tmp_path: Path) -> None:
    """- reads a script from standard input, Python's by its first line."""
    code, out, _ = lint(tmp_path, "--machine", "lumi", "-", given=WRONG.encode())
    assert code == 1 and out.startswith("standard input\n")
    assert lint(tmp_path, "-", given=b"#!/usr/bin/env python\ndef f(:\n")[0] == 1


def test_machine_is_recognised_by_partition(tmp_path: Path) -> None:
    """A partition that one machine alone has says which it is."""
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH -p dev-g -t 24:00:00 --gpus-per-node=1 -A project_462000001 -c 7\n"
    )
    code, out, _ = lint(tmp_path, "job.sh")
    assert code == 1 and "ECH104" in out and "judged for lumi" in out


def test_unknown_machine_is_said(tmp_path: Path) -> None:
    """Where echelon does not know this machine, its limits are not judged, and that is said on standard error."""
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH -p gpu -t 24:00:00\n")
    code, _, err = lint(tmp_path, "job.sh")
    assert (code, "echelon does not know this machine" in err) == (0, True)


@pytest.mark.parametrize("code", table.CODES)
def test_every_rule_is_explained(code: str) -> None:
    """Each rule has a page with a reason and a source, and no page is left over."""
    page = all_pages()[code]
    assert page.title and page.why.endswith((".", "]")) and page.source and page.bad and page.good
    assert tuple(all_pages()) == table.CODES


def test_list_and_explain(tmp_path: Path) -> None:
    """--list names every rule, --explain shows the page of one."""
    _, out, _ = lint(tmp_path, "--list")
    assert [line.split()[0] for line in out.splitlines()] == list(table.CODES)
    code, out, _ = lint(tmp_path, "--explain", "ech303")
    assert code == 0 and "bad:" in out and "good:" in out and "source: " in out


@pytest.mark.parametrize(
    ("arguments", "content", "said"),
    [
        ((), b"", "echelon lint needs a file"),
        (("none.sh",), b"", "echelon cannot read none.sh: No such file"),
        (("given.sh",), b"\x7fELF\0\1", "not text"),
        pytest.param(("given.sh",), b"#" * (11 << 20), "a script of its kind has at most", id="large"),
        (("given.ipynb",), b"{}", "is a notebook"),
        (("--machine", "lumy", "given.sh"), b"", "echelon knows no machine 'lumy'"),
        (("--explain", "ECH9999"), b"", "there is no rule 'ECH9999'"),
        (("--fast", "given.sh"), b"", "echelon has no option --fast"),
        ((".",), b"", ". is a folder"),
    ],
)
def test_wrong_input_is_one_clear_error(tmp_path: Path, arguments: tuple[str, ...], content: bytes, said: str) -> None:
    """Exit code 2, what is wrong, a hint, and no traceback."""
    for name in ("given.sh", "given.ipynb"):
        (tmp_path / name).write_bytes(content)
    code, out, err = lint(tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert said in err and "hint: " in err and "Traceback" not in err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"#!/bin/csh\nif ($x == 1) then\nendif\n",
        b"#!/bin/bash\r\necho hi\r\n",
        "#!/bin/bash\necho gr\xfc\xdfe\n".encode("latin-1"),
        b"#!/bin/bash\n#SBATCH --nodes={{ nodes }} --time={{ time }}\nsrun python {{ script }}\n",
        b"#!/bin/zsh\nfor x (1 2 3) echo $x\n",
        b"((((((((" * 1000,
        b"$(" * 5000,
        b"\\",
        b"<<EOF",
        b"cat <<'EOF\nx",
    ],
)
def test_odd_script_is_read(tmp_path: Path, content: bytes) -> None:
    """Other shells, templates, other encodings and broken quotes are findings or nothing, never a failure."""
    (tmp_path / "odd.sh").write_bytes(content)
    code, _, err = lint(tmp_path, "--machine", "lumi", "odd.sh")
    assert code in (0, 1) and "Traceback" not in err


@pytest.mark.parametrize(
    "body",
    [
        "x = " + "+".join(["a"] * 3000) + "\n" + "if rank == " + "+".join(["0"] * 3000) + ":\n    torch.save(1, 'a')\n",
        "".join(f"def f{i}():\n    f{i + 1}()\n" for i in range(3000)) + "def f3000():\n    torch.save(1, 'a')\n",
        "if a:\n    b\n" + "elif rank == 0:\n    torch.save(1, 'a')\n" * 900,
    ],
)
def test_deep_program_is_read(tmp_path: Path, body: str) -> None:
    """Chains of calls, of branches and of operators longer than Python's own stack end in no traceback."""
    head = "import torch\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
    (tmp_path / "deep.py").write_text(head + body)
    code, _, err = lint(tmp_path, "deep.py")
    assert code in (0, 1) and "Traceback" not in err


def test_lint_imports_no_torch(tmp_path: Path) -> None:
    """The script is read and never run, and torch is not imported for it."""
    (tmp_path / "train.py").write_text("raise SystemExit('run')\n")
    code = (
        "import sys; from echelon.cli import main\n"
        "assert main(['lint', 'train.py']) == 0\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
