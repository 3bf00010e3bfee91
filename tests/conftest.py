"""What all tests share: a clean environment, and the private cluster."""

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest
from tests.cluster.fixture import slurm

__all__ = ["slurm"]
pytest_plugins = ["tests.schedule", "tests.changed", "tests.tiers"]  # the last one chooses first

# Beside other tests the numbers of a case take long to draw. The cases are the same each time, but for `make soak`.
hypothesis.settings.register_profile(
    "tests",
    deadline=None,
    derandomize="--tier=soak" not in sys.argv,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("tests")

gc.disable()  # until all is imported and collected: objects are only added

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A shell that stands in an allocation, or was started by a launcher, must not reach into the tests.
FOREIGN = (
    "SLURM_",
    "OMPI_",
    "PMI_",
    "PMIX_",
    "TORCHELASTIC_",
    "ECHELON_",
    "CUDA_VISIBLE",
    "HIP_VISIBLE",
    "ROCR_VISIBLE",
)

# a file that keeps what failed, written by the process that hears of all; read before a test cleans up
failures = "" if "PYTEST_XDIST_WORKER" in os.environ else os.environ.get("ECHELON_FAILURES", "")


def pytest_runtest_logreport(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Note what failed for whoever runs several pytests beside one another."""
    if report.failed and failures:
        with open(failures, "a", encoding="utf-8") as file:
            name = re.sub(r"@[^@\]]*$", "", report.nodeid)  # without its unit
            file.write(f"\nFAILED {name}\n{report.longreprtext}\n")


pytest_collectreport = pytest_runtest_logreport


def pytest_collection_finish() -> None:
    """Let no collection look through what stays to the end."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def caught_refusals() -> Iterator[None]:
    """Forget the refusals that a test has caught: a process in which one stays untold ends with exit code 2."""
    yield
    module = sys.modules.get("echelon.train.scaling_error")
    if module is not None:
        module._untold.clear()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take the surroundings of the test run out of the environment, and one thread per rank: two cores are shared."""
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name)
    yield
