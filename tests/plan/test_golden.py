"""The batch scripts for all machines, kept whole and read as text; `python -m tests.plan.test_golden` writes them."""

import sys
from datetime import date
from pathlib import Path

import pytest

from echelon.errors import UsageError
from echelon.plan.book import book
from echelon.scheduler.slurm import batch, plain

from .cases import CASES, PAST, TODAY, Case, machine

GOLDEN = Path(__file__).parent / "golden"
FOLDER = "/scratch/project/experiment"
COMMAND = ["train.py", "--epochs", "3"]
LAYOUTS = ("echelon", "torchrun", "tasks")


def script(case: Case, layout: str, today: date = TODAY) -> str:
    """Return the script of a case as a user of that machine gets it."""
    booking = book(case.request, machine(case.machine), today=today)
    run_directory = f"{FOLDER}/echelon-runs/20260701-120000-train-0000"
    heading = batch.Heading(
        job_name="train",
        made_by=f"echelon submit --machine {case.machine} … train.py --epochs 3",
        folder=FOLDER,
        output=f"{run_directory}/slurm.out",
        after="",
        starter=batch.STARTER if layout == "echelon" else plain.STARTERS[layout],
    )
    if layout == "echelon":
        words = ["/home/me/venv/bin/python", "-m", "echelon", "run", *COMMAND]
        return batch.render(
            booking, heading, batch.supervised(words, run_directory, [("ECHELON_MACHINE", case.machine)], ())
        )
    if booking.world_size == 1:
        return plain.alone(booking, heading, COMMAND, modules=("source /home/me/venv/bin/activate",))
    body = plain.body(booking, layout, COMMAND, modules=("source /home/me/venv/bin/activate",))
    return batch.render(booking, heading, body, tasks_per_node=plain.tasks_per_node(booking, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_script(case: Case, layout: str) -> None:
    """The script is the reviewed one, to the letter."""
    assert script(case, layout) == (GOLDEN / f"{case.id}-{layout}.sh").read_text()


def test_every_golden_script_has_its_case() -> None:
    """No script is kept that no case makes."""
    made = {f"{case.id}-{layout}.sh" for case in CASES for layout in LAYOUTS}
    assert {path.name for path in GOLDEN.iterdir()} == made


@pytest.mark.parametrize("case", PAST, ids=lambda case: case.id)
def test_past_the_limit(case: Case) -> None:
    """One past the limit is refused, with the limit, its source and the nearest that fits."""
    with pytest.raises(UsageError) as error:
        script(case, "echelon")
    said = error.value.message + error.value.details
    assert "at most" in said
    assert "docs/" in said
    assert error.value.hint.startswith("--gpus")


def main() -> None:
    """Write all scripts anew."""
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.iterdir():
        path.unlink()
    for case in CASES:
        for layout in LAYOUTS:
            (GOLDEN / f"{case.id}-{layout}.sh").write_text(script(case, layout))
    sys.stderr.write(f"{len(CASES) * len(LAYOUTS)} scripts written; read the difference before you commit it\n")


if __name__ == "__main__":
    main()
