"""`echelon lint --format`: what code hosts, editors and workflows read."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lint.test_command import WARNED, WRONG, lint

import echelon
from echelon.lint.pages import all_pages

HOOKS = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my job.sh").write_text(WRONG)
    (tmp_path / "train.py").write_text(WARNED)
    return tmp_path


def test_sarif(folder: Path) -> None:
    """Each finding is a result at its place, with the rule that it names; the rules have their pages."""
    code, out, _ = lint(folder, "--machine", "lumi", "--format", "sarif", "my job.sh", "train.py")
    findings = json.loads(lint(folder, "--machine", "lumi", "--json", "my job.sh", "train.py")[1])["findings"]
    document = json.loads(out)
    assert code == 1
    assert (document["version"], len(document["runs"])) == ("2.1.0", 1)
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("echelon lint", echelon.__version__)
    assert len(run["results"]) == len(findings) > 1
    for result, finding in zip(run["results"], findings, strict=True):
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == finding["code"]
        assert result["level"] == finding["severity"] in ("error", "warning", "note")
        assert result["message"]["text"].startswith(finding["message"])
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"] == finding["path"].replace(" ", "%20")
        assert place["region"]["startLine"] == finding["line"] >= 1
        assert place["region"]["endColumn"] > place["region"]["startColumn"] == finding["column"] >= 1
    (fix,) = run["results"][0]["fixes"]
    (change,) = fix["artifactChanges"]
    assert change["artifactLocation"]["uri"] == "my%20job.sh"
    assert change["replacements"] == [
        {
            "deletedRegion": {"startLine": 2, "startColumn": 16, "endLine": 2, "endColumn": 21},
            "insertedContent": {"text": "; then"},
        }
    ]
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"] == all_pages()[rule["id"]].title


def test_nothing_found_is_a_document_too(tmp_path: Path) -> None:
    """A clean file gives an empty list, and no annotation."""
    (tmp_path / "train.py").write_text("print(1)\n")
    assert json.loads(lint(tmp_path, "--format", "sarif", "train.py")[1])["runs"][0]["results"] == []
    assert lint(tmp_path, "--format", "github", "train.py") == (0, "", "")


def test_annotations(folder: Path) -> None:
    """A line for each finding, in which nothing that means something to GitHub stands by chance."""
    (folder / "a,b:c.py").write_text(WARNED)
    _, out, _ = lint(folder, "--machine", "lumi", "--format", "github", "my job.sh", "a,b:c.py")
    findings = json.loads(lint(folder, "--machine", "lumi", "--json", "my job.sh", "a,b:c.py")[1])["findings"]
    lines = out.splitlines()
    assert len(lines) == len(findings)
    pattern = re.compile(r"::(error|warning|notice) file=([^,:]*),line=(\d+),col=(\d+),endColumn=\d+,title=(\w+)::(.*)")
    for line, finding in zip(lines, findings, strict=True):
        match = pattern.fullmatch(line)
        assert match is not None, line
        assert match[2].replace("%2C", ",").replace("%3A", ":") == finding["path"]
        assert (int(match[3]), int(match[4]), match[5]) == (finding["line"], finding["column"], finding["code"])
        assert match[6].replace("%0A", "\n").replace("%25", "%").startswith(finding["message"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--format", "xml"), "--format xml: the choices are text, json, sarif, github"),
        (("--json", "--format", "sarif"), "--json and --format sarif are two formats"),
    ],
)
def test_bad_format(folder: Path, options: tuple[str, ...], message: str) -> None:
    """The choices are listed, and nothing is printed."""
    code, out, err = lint(folder, *options, "train.py")
    assert (code, out) == (2, "")
    assert message in err


def test_hook(folder: Path) -> None:
    """What pre-commit calls runs on the files that it names."""
    entry = re.search(r"^  entry: (.+)$", HOOKS.read_text(), re.MULTILINE)
    assert entry is not None
    program, *words = shlex.split(entry[1])
    installed = str(Path(sys.executable).with_name(program))
    done = subprocess.run([installed, *words, "my job.sh"], cwd=folder, capture_output=True, check=False)
    assert done.returncode == 1
