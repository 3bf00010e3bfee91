"""Scripts that were once trained, judged or predicted wrongly are answered rightly, as their users run them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
CASES: dict[str, Any] = tomllib.loads((HERE / "cases.toml").read_text())
TIERS = [pytest.param(name, marks=pytest.mark.tier(case.get("tier", "all"))) for name, case in CASES.items()]


def numbers(text: str) -> list[float]:
    """Return all numbers that a script has printed."""
    return [float(word) for word in re.findall(r"-?\d+\.\d+", text)]


@pytest.mark.apart
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TIERS)
def test_reproduction(tmp_path: Path, name: str) -> None:
    """Each command has the exit code and the words of cases.toml, and the numbers of one device where it trains."""
    case = CASES[name]
    folder = tmp_path / "scripts"
    shutil.copytree(HERE / "scripts", folder)
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": places}
    if "shell" in case:
        words = ["sh", "-c", case["shell"]]
        done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=240, check=False)
    else:
        done = warm.run(["-m", "echelon", *case["run"].split()], cwd=folder, environ=environ)
    said = done.stdout + done.stderr
    if case.get("report"):
        said += "\n" + warm.run(["-m", "echelon", "report"], cwd=folder, environ=environ).stdout
    assert done.returncode == case.get("code", 0), said
    assert [part for part in case.get("says", ()) if part not in said] == [], said
    assert [part for part in case.get("unsaid", ()) if part in said] == [], said
    if case.get("equal"):
        alone = warm.run([case["run"].split()[-1]], cwd=folder, environ=environ)
        assert numbers(done.stdout) == pytest.approx(numbers(alone.stdout), abs=3e-6)
        assert len(numbers(alone.stdout)) > 5
