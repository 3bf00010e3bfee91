"""`echelon fit` of scripts that leave their loop to a Trainer: on one device it does not distribute them."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.runs import ECHELON
from tests.tiers import in_all, pick

SCRIPTS = Path(__file__).parent / "one_device"
OF_TRANSFORMERS, OF_LIGHTNING = "of_transformers.py", "of_lightning.py"
MARKS = {
    script: pytest.mark.framework("torch", package)
    for script, package in ((OF_TRANSFORMERS, "transformers"), (OF_LIGHTNING, "lightning"))
}
VARIANTS = {
    OF_TRANSFORMERS: ("evaluation", "accumulation", "bf16", "fp16", "collator", "own_loss"),
    OF_LIGHTNING: ("logged", "fit", "auto", "manual", "bf16_true", "bf16_mixed", "fp16_mixed", "accumulation", "ddp"),
}
TRACED = [
    pytest.param(script, variant, marks=MARKS[script])
    for script, variants in VARIANTS.items()
    for variant in pick(variants[:1], all=variants)
]
ONE_DEVICE = 'let the script use one device: devices=1, strategy="auto"'
REFUSED = [
    (OF_LIGHTNING, "four_devices", "of_lightning.py cannot be traced: MisconfigurationException at ", ONE_DEVICE),
    in_all(OF_TRANSFORMERS, "two_devices", "distributes itself: init_process_group() is called at ", ONE_DEVICE),
]


def fit(folder: Path, script: str, variant: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*ECHELON, "fit", "--device", "a100-40", *words, str(SCRIPTS / script), variant],
        cwd=folder, env={**os.environ, "XDG_CONFIG_HOME": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def answer(folder: Path, script: str, variant: str) -> dict[str, Any]:
    done = fit(folder, script, variant, "--json")
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


@pytest.mark.parametrize(("script", "variant"), TRACED)
def test_training_by_a_trainer_is_traced(tmp_path: Path, script: str, variant: str) -> None:
    """Two steps are seen with the weights, gradients and states of a loop; nothing is written."""
    parsed = answer(tmp_path, script, variant)
    first = parsed["devices"][0]["strategies"][0]
    weight_bytes = parsed["parameters"] * (2 if variant == "bf16_true" else 4)
    assert (parsed["steps"], parsed["rows"]) == (2, 64 if script == OF_LIGHTNING else 8)
    assert weight_bytes <= first["parts"]["parameter"] <= 1.01 * weight_bytes
    assert variant == "own_loss" or 1.99 * weight_bytes <= first["parts"]["state"] <= 2.02 * weight_bytes
    assert [path.name for path in tmp_path.iterdir()] in ([], ["echelon"])


@pytest.mark.parametrize(
    ("script", "variant"),
    [
        pytest.param(OF_LIGHTNING, "fit", marks=(MARKS[OF_LIGHTNING], pytest.mark.tier("all"))),
        pytest.param(OF_TRANSFORMERS, "plain", marks=(MARKS[OF_TRANSFORMERS], pytest.mark.tier("all"))),
    ],
)
def test_trainer_takes_what_a_loop_takes(tmp_path: Path, script: str, variant: str) -> None:
    """The peak of a Trainer is that of the same training as a loop, within 2 %."""
    peaks = [
        sum(answer(tmp_path, script, name)["devices"][0]["strategies"][0]["parts"].values())
        for name in (variant, "loop")
    ]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.02)


@pytest.mark.framework("torch", "transformers", "lightning")
@pytest.mark.parametrize(("script", "variant", "error", "hint"), REFUSED)
def test_several_devices_are_refused(tmp_path: Path, script: str, variant: str, error: str, hint: str) -> None:
    """One sentence names the line, and a hint the way out; exit code 2, no traceback."""
    done = fit(tmp_path, script, variant)
    assert done.returncode == 2
    assert error in done.stderr and hint in done.stderr
    assert "Traceback" not in done.stderr and "site-packages" not in done.stderr and len(done.stderr.splitlines()) == 3
