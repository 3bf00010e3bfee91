"""Scripts in styles that no rule was written for: what is said of them is true, and there is no noise."""

import pytest
from tests.lint.linting import texts

HEAD = "#!/bin/bash\n#SBATCH --gpus-per-node=4\n#SBATCH --time=1:00:00\n"


def said(text: str, name: str = "job.sh") -> dict[str, list[str]]:
    """Return the messages by rule."""
    found: dict[str, list[str]] = {}
    for finding in texts({name: text}).findings:
        found.setdefault(finding.code, []).append(finding.message)
    return found


@pytest.mark.parametrize("value", ["$NODES", "${SLURM_NNODES}", "$SLURM_JOB_NUM_NODES", "$((2*N))", "`nproc`"])
def test_a_number_that_no_shell_reads(value: str) -> None:
    """A variable for the number of nodes is the one mistake; no rule takes it for a number, or runs in circles."""
    found = said(
        f"{HEAD}#SBATCH --nodes={value}\n#SBATCH --ntasks={value}\nsrun python train.py --nodes $SLURM_NNODES\n"
    )
    assert set(found) == {"ECH126"} and len(found["ECH126"]) == 2


@pytest.mark.parametrize(
    ("option", "severity"),
    [("--output=$HOME/%j.out", "error"), ("--job-name=$NAME", "warning"), ("--comment=costs-5$", None),
     (r"--comment=\$5", None), ("--output=%x-%j.out", None)],
)  # fmt: skip
def test_a_variable_in_an_option(option: str, severity: str | None) -> None:
    """What fails is an error, a name that only looks odd a warning; signs of Slurm's own and a lone dollar are fine."""
    found = texts({"job.sh": f"{HEAD}#SBATCH {option}\nsrun python train.py\n"}).findings
    assert [each.severity for each in found if each.code == "ECH126"] == ([severity] if severity else [])


def test_a_template_is_not_filled_in() -> None:
    """Lines that a template drops are no commands: options after them count, and each gap is named once."""
    found = said(
        "#!/bin/bash\n{# made by a tool #}\n{% for line in options %}\n#SBATCH --{{ line }}\n{% endfor %}\n"
        "#SBATCH --nodes={{ nodes }}\n#SBATCH --time=1:00:00\nsrun python train.py\n"
    )
    assert found == {"ECH118": ["{{ line }} is a placeholder: replace it", "{{ nodes }} is a placeholder: replace it"]}


@pytest.mark.parametrize("line", ["!pip install torch", "%matplotlib inline"])
def test_a_notebook_that_became_a_script(line: str) -> None:
    """Lines that only notebooks run are named as such, with the comment that they should be."""
    (finding,) = texts({"train.py": f"import torch\n{line}\n"}).findings
    assert (finding.code, finding.line, finding.repair) == ("ECH500", 2, f"# {line}")
    assert "are only for notebooks" in finding.message


def test_ranks_that_are_counted_in_two_words() -> None:
    """torchrun's options are written with a space as well, and the repair can be pasted."""
    (finding,) = [
        each
        for each in texts({"job.sh": f"{HEAD}srun torchrun --standalone --nproc_per_node 1 train.py\n"}).findings
        if each.code == "ECH201"
    ]
    assert finding.message == "1 rank on each node, but the job has 4 devices there"
    assert finding.repair == "--nproc_per_node=4"
