"""The values of `--hang-timeout`."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.runs import ECHELON


def dry_run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text("")
    command = [*ECHELON, "run", "--dry-run", "--json", *options, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("value", ["0", "abc", "", "-5", "10x", "0m", "on"])
def test_wrong_value(tmp_path: Path, value: str) -> None:
    """One error names the value and the valid forms, and nothing starts."""
    done = dry_run(tmp_path, f"--hang-timeout={value}")
    assert done.returncode == 2
    shown = value or "''"
    forms = "give seconds above 0, or a number with m, h or d, or auto or off"
    assert f"--hang-timeout {shown}: {forms}" in done.stderr
    hint = "echelon run --hang-timeout off" if value.startswith("0") else "--hang-timeout 10m"
    assert f"hint: {hint}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "planned"),
    [((), "auto"), (("--hang-timeout", "auto"), "auto"), (("--hang-timeout", "off"), "off"),
     (("--hang-timeout", "10m"), 600.0), (("--hang-timeout=1.5",), 1.5)],
)  # fmt: skip
def test_planned_value(tmp_path: Path, options: tuple[str, ...], planned: object) -> None:
    """The plan has seconds, "auto" or "off"."""
    done = dry_run(tmp_path, *options)
    assert json.loads(done.stdout)["hang_timeout"] == planned, done.stderr
