"""`echelon lint --fix`: what is certain is repaired, shown first, and nothing else is touched."""

import json
import subprocess
from functools import partial
from pathlib import Path

import pytest
from tests.lint.linting import MACHINES, TODAY
from tests.lint.test_command import CLEAN, WRONG, lint

from echelon.cli.lint import write
from echelon.errors import UsageError
from echelon.lint.pages import all_pages, default_name, files
from echelon.lint.repair import Repaired, difference, repair
from echelon.lint.run import lint as lint_texts
from echelon.lint.run import lint as look

PAGES = all_pages()
CHANGED = """\
--- job.sh
+++ job.sh
@@ -1,4 +1,4 @@
 #!/bin/bash
-if [ $A -eq 2 ] then
+if [ $A -eq 2 ]; then
   true
 fi
"""


def repaired(code: str) -> Repaired:
    page = PAGES[code]
    machine = MACHINES[page.machine] if page.machine else None
    given = {name: text.encode() for name, text in files(page.bad, default_name(code)).items()}
    return repair(given, partial(lint_texts, today=TODAY, machine=machine, machines=MACHINES))


FIXABLE = [code for code in PAGES if repaired(code).findings]
# the bad example has a second mistake, for which a person has to decide
LEFT = {"ECH120": 4, "ECH121": 3, "ECH126": 2}


def test_many_rules_are_repaired() -> None:
    """Those that say for certain what was meant."""
    assert len(FIXABLE) >= 39


@pytest.mark.parametrize("code", FIXABLE)
def test_repaired_example_is_silent(code: str) -> None:
    """What --fix writes lints clean, is what Python and JSON can read, and is repaired once and for all."""
    found = repaired(code)
    assert {each.code for each in found.findings} == {code}
    left = [(each.code, each.line) for each in found.left.findings]
    assert left == ([(code, LEFT[code])] if code in LEFT else [])
    for name, source in found.sources.items():
        if name.endswith(".py"):
            compile(source, name, "exec")
        elif name.endswith(".json"):
            json.loads(source)
    again = repair(found.sources, lambda sources: look(sources, today=TODAY, machines=MACHINES))
    assert not [each for each in again.findings if each.code == code]


def test_difference_comes_first_and_then_the_file(tmp_path: Path) -> None:
    """--fix prints what changes, writes it with the file's mode, and reports what is left."""
    job = tmp_path / "job.sh"
    job.write_text(WRONG)
    job.chmod(0o750)
    code, out, err = lint(tmp_path, "--machine", "lumi", "--fix", "job.sh")
    assert (code, out) == (0, f"{CHANGED}\nnothing found in 1 file\n".replace("file\n", "file, judged for lumi\n"))
    assert err == "echelon: 1 repair: ECH303\n"
    assert job.read_text() == WRONG.replace("] then", "]; then")
    assert job.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in tmp_path.iterdir()] == ["job.sh"]


@pytest.mark.parametrize("options", [("--diff",), ("--fix", "--diff")])
def test_diff_writes_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    """--diff prints what git can apply, and exits with 1 as long as something would change."""
    job = tmp_path / "job.sh"
    job.write_text(WRONG)
    code, out, err = lint(tmp_path, "--machine", "lumi", *options, "job.sh")
    assert (code, out, err) == (1, CHANGED, "echelon: 1 repair for --fix: ECH303\n")
    assert job.read_text() == WRONG
    subprocess.run(["git", "apply", "-p0", "-"], input=out, text=True, cwd=tmp_path, check=True)
    assert lint(tmp_path, "--machine", "lumi", "--diff", "job.sh") == (
        0, "", "echelon: no repair is certain\n",
    )  # fmt: skip


def test_standard_input_is_shown_and_not_written(tmp_path: Path) -> None:
    """A script from standard input has a difference, and no file."""
    code, out, _ = lint(tmp_path, "--machine", "lumi", "--diff", "-", given=WRONG.encode())
    assert (code, out) == (1, CHANGED.replace("job.sh", "standard input"))
    code, out, err = lint(tmp_path, "--machine", "lumi", "--fix", "-", given=WRONG.encode())
    assert (code, out) == (2, "")
    assert "--fix writes files, but standard input is not a file" in err and "hint: echelon lint --diff -" in err


def test_formats_have_the_output(tmp_path: Path) -> None:
    """With --json the output is what is left, and the difference is talk; --diff has no other format."""
    (tmp_path / "job.sh").write_text(WRONG)
    code, out, err = lint(tmp_path, "--machine", "lumi", "--json", "job.sh")
    (found,) = json.loads(out)["findings"]
    assert found["edits"] == [{"line": 2, "column": 16, "old": " then", "new": "; then"}]
    code, out, err = lint(tmp_path, "--machine", "lumi", "--fix", "--json", "job.sh")
    assert code == 0 and json.loads(out)["findings"] == [] and CHANGED in err
    code, out, err = lint(tmp_path, "--diff", "--json", "job.sh")
    assert (code, out) == (2, "") and "--diff prints a difference, but --json prints findings" in err


def test_file_that_cannot_be_written(tmp_path: Path) -> None:
    """The file and the reason are named, and nothing is left beside it."""
    with pytest.raises(UsageError, match=r"echelon cannot write .*job.sh: No such file or directory"):
        write(str(tmp_path / "gone" / "job.sh"), b"")
    (tmp_path / "job.sh").mkdir()
    with pytest.raises(UsageError, match=r"echelon cannot write .*job.sh: Is a directory"):
        write(str(tmp_path / "job.sh"), b"")
    assert [path.name for path in tmp_path.iterdir()] == ["job.sh"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (WRONG.replace("then", "then # echelon: ignore[ECH303]"), None),
        (WRONG.replace("true", "echo gr\xfc\xdfe"), None),
        ("\ufeff" + WRONG, "\ufeff" + WRONG.replace("] then", "]; then")),
        (WRONG.replace("\n", "\r\n"), WRONG.replace("] then", "]; then")),
        (WRONG.removesuffix("\n"), WRONG.removesuffix("\n").replace("] then", "]; then")),
        (WRONG.replace("true", "echo a\x0cb"), WRONG.replace("true", "echo a\x0cb").replace("] then", "]; then")),
    ],
    ids=["silenced", "not UTF-8", "byte-order mark", "Windows", "no last line end", "form feed"],
)
def test_the_rest_of_a_file_stays(tmp_path: Path, before: str, after: str | None) -> None:
    """What is silenced or cannot be written back as it was is left; all other bytes are as they were."""
    encoding = "latin-1" if "\xfc" in before else "utf-8"
    (tmp_path / "job.sh").write_bytes(before.encode(encoding))
    lint(tmp_path, "--machine", "lumi", "--fix", "job.sh")
    assert (tmp_path / "job.sh").read_bytes() == (after if after is not None else before).encode(encoding)


def test_link_stays_a_link(tmp_path: Path) -> None:
    """What it leads to is repaired."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "job.sh").write_text(WRONG)
    (tmp_path / "job.sh").symlink_to("there/job.sh")
    lint(tmp_path, "--machine", "lumi", "--fix", "job.sh")
    assert (tmp_path / "job.sh").is_symlink()
    assert "]; then" in (tmp_path / "there" / "job.sh").read_text()


def test_clean_file_is_not_written(tmp_path: Path) -> None:
    """Nothing to repair: nothing is printed but the report, and the file is the same one."""
    path = tmp_path / "train.py"
    path.write_text(CLEAN)
    before = path.stat()
    code, out, err = lint(tmp_path, "--fix", "train.py")
    assert (code, out) == (0, "nothing found in 1 file\n")
    assert err == "echelon: no repair is certain\n"
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("job.sh", "#!/bin/bash\nsrun –n 2 echo “a b” – “c”\n", '#!/bin/bash\nsrun -n 2 echo "a b" – "c"\n'),
        ("job.sh", "\n\n#!/bin/bash\n#SBATCH --time=1:00:00\n", "#!/bin/bash\n#SBATCH --time=1:00:00\n"),
        (
            "job.sh",
            "#!/bin/bash\n#SBATCH --time=2h\nmodule purge\n#SBATCH -N 2\n#SBATCH --exclusive\nsrun hostname\n",
            "#!/bin/bash\n#SBATCH --time=02:00:00\n#SBATCH -N 2\n#SBATCH --exclusive\nmodule purge\nsrun hostname\n",
        ),
        (
            "train.py",
            "from __future__ import annotations\n\nimport torch\n\nmodel = DistributedDataParallel(net)\n",
            "from __future__ import annotations\n\nfrom torch.nn.parallel import DistributedDataParallel\n"
            "import torch\n\nmodel = DistributedDataParallel(net)\n",
        ),
        (
            "train.py",
            "from data import batches, compute, self\nfor x in batches:\n    compute(x).backward()\n"
            "    self.optimizer.step()  # one step\n",
            "from data import batches, compute, self\nfor x in batches:\n    compute(x).backward()\n"
            "    self.optimizer.step()  # one step\n    self.optimizer.zero_grad()\n",
        ),
        ("ds.json", '{\n  // for V100\n  "a": [1, 2,],\n  "b": {},\n}\n', '{\n  "a": [1, 2],\n  "b": {}\n}\n'),
    ],
    ids=["dashes and quotes", "empty first lines", "late options", "import", "zero_grad", "json"],
)
def test_repair(name: str, before: str, after: str) -> None:
    """Scripts as people write them come out as they would have repaired them."""
    found = repair({name: before.encode()}, lambda sources: look(sources, today=TODAY))
    assert found.sources[name].decode() == after


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.sh", "#!/bin/bash\n#SBATCH --nodes=2\nmodule purge\n#SBATCH --nodes=4\nsrun hostname\n"),
        ("job.sh", "#!/bin/bash\n#SBATCH --mem-per-xpu=4G\nsrun hostname\n"),
        ("job.sh", "#!/bin/bash\n#SBATCH --cpus-per-task=8\n#SBATCH --ntasks=1\nsrun -n 4 ./step\n"),
        ("job.sh", "#!/bin/bash\nexport NCCL_BLOCKING_WAIT=1\necho $NCCL_BLOCKING_WAIT\n"),
        ("job.sh", "#!/bin/bash\nMODE = fast and loose\n"),
        (
            "train.py",
            "from torch.utils.data import DataLoader, DistributedSampler\nfrom data import data, many\n"
            "sampler = DistributedSampler(data) if many else None\nloader = DataLoader(data, sampler=sampler)\n"
            "for epoch in range(3):\n    print(epoch)\n",
        ),
        (
            "train.py",
            "import torch.distributed as dist\ndist.init_process_group('gloo')\nif dist.get_rank() == 0:\n"
            "    x = 1\n    dist.barrier()\nelse:\n    x = 2\n",
        ),
    ],
    ids=[
        "contradiction",
        "two options as near",
        "steps of many tasks",
        "used by its old name",
        "words",
        "None",
        "else",
    ],
)
def test_what_is_not_certain_is_left(name: str, text: str) -> None:
    """The mistake is found, and a person decides."""
    found = repair({name: text.encode()}, lambda sources: look(sources, today=TODAY))
    assert found.left.findings and not found.findings
    assert difference({name: text.encode()}, found.sources) == ""
