"""Find out what is installed; `make frameworks` installs all of it and lets nothing be skipped."""

import os
import sys

import pytest

from .lines import missing

MUST = os.environ.get("ECHELON_FRAMEWORKS") == "1"  # asked now: each test begins without such variables


@pytest.fixture(autouse=True)
def environment_of_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each rank one thread, DeepSpeed no device and its compiled parts, and TensorFlow less to say."""
    compiled = os.path.join(sys.prefix, "torch_extensions")  # two environments that share a folder compile in turns
    for name, value in {
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": compiled,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "MPIR_CVAR_CH4_NETMOD": "ofi",  # under Slurm's pmi2 MPICH may hang with another: docs/launchers.md
    }.items():
        monkeypatch.setenv(name, value)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked with what it needs where that is not installed."""
    for marker in item.iter_markers("framework"):
        lacking = [package for package in marker.args if missing(package)]
        if lacking and MUST:
            pytest.fail(f"not installed: {', '.join(lacking)}", pytrace=False)
        if lacking:
            pytest.skip(f"{', '.join(lacking)}: make frameworks")
