"""lint follows commands through variables, arrays, functions, eval, bash -c and called scripts."""

import datetime
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lint.linting import codes, texts

from echelon.lint.executed_commands import called
from echelon.lint.job import JobScript

HEAD = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=4\n#SBATCH --time=1:00:00\n"
RUN = "torchrun --standalone --nproc-per-node=2 train.py"


def job(text: str, **scripts: str) -> JobScript:
    named = {f"{name}.sh": body for name, body in scripts.items()}
    return JobScript(path="job.sh", text=text, today=datetime.date(2026, 11, 21), scripts=named)


def run(text: str, **scripts: str) -> list[str]:
    return [" ".join(word.text for word in command.words) for command in job(text, **scripts).commands]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("A='x y'\nsrun $A z\n", "srun x y z"),
        ('A="x y"\nsrun "$A" z\n', "srun x y z"),
        ('A=(x "y z")\nA+=(w)\nsrun "${A[@]}"\n', "srun x y z w"),
        ('A=(\n  x  # don\'t\n  y\n)\nsrun "${A[@]}"\n', "srun x y"),
        ("A=x\nA+=' y'\nsrun $A\n", "srun x y"),
        ("A=x\nB=\"$A y\"\nsrun ${B}\n", "srun x y"),
        ("f() {\n  srun \"$@\"\n}\nf x y\n", "srun x y"),
        ("function f {\n  srun $2\n}\nf x y\n", "srun y"),
        ("C='srun x'\neval \"$C y\"\n", "srun x y"),
        ("C='srun x'\nbash -c \"$C y\"\n", "srun x y"),
        ("bash <<EOF\nsrun x\nEOF\n", "srun x"),
        ("cat > go.sh <<'EOF'\nsrun x \"$1\"\nEOF\nbash go.sh y\n", "srun x y"),
        ("A=$(date)\nsrun $A\n", "srun $A"),
        ("for A in x y; do\n  srun $A\ndone\n", "done"),
    ],
)  # fmt: skip
def test_what_runs_in_the_end(text: str, last: str) -> None:
    """The last command that runs has its variables filled in, as far as the script itself says them."""
    assert run(text)[-1] == last


def test_called_script() -> None:
    """A script that is given beside is followed, with its arguments."""
    assert run("srun ./go.sh x y\n", go='python "$@"\n')[-1] == "python x y"
    assert run("source go.sh\nsrun $A\n", go="A='x y'\n")[-1] == "srun x y"


def test_branches_are_not_mixed() -> None:
    """A variable that is set in two branches is not followed into either."""
    text = 'if [ "$1" ]; then\n  A=x\nelse\n  A=y\nfi\nsrun $A\n'
    assert run(text)[-1] == "srun $A"


@pytest.mark.parametrize(
    "text",
    [
        f"L='{RUN}'\nsrun $L\n",
        f'L="{RUN}"\nsrun bash -c "$L"\n',
        f"L=({RUN})\nsrun \"${{L[@]}}\"\n",
        f'go() {{\n  {RUN}\n}}\ngo\n',
        f'L="{RUN}"\neval "$L"\n',
        f'srun bash <<EOF\n{RUN}\nEOF\n',
    ],
)  # fmt: skip
def test_mistake_is_found_where_it_stands(text: str) -> None:
    """The number of ranks is judged in a variable, an array, a function: at the line that holds the number."""
    mistakes = [each for each in texts({"job.sh": HEAD + text}).findings if each.code == "ECH201"]
    assert [each.text.find("--nproc-per-node=2") + 1 for each in mistakes] == [mistakes[0].column]


def test_options_of_the_step_end_where_its_program_begins() -> None:
    """-c behind bash is no number of cores for srun."""
    script = "#SBATCH --cpus-per-task=8\nsrun bash -c 'python train.py'\n"
    assert "ECH213" in codes(texts({"job.sh": HEAD + script}))
    assert "ECH213" not in codes(texts({"job.sh": HEAD + script.replace("srun", "srun -c 8")}))


@pytest.mark.parametrize("opening", ["sbatch <<EOF", "sbatch << 'EOF'", "cat > job-2.sh <<EOF", "cat <<EOF | sbatch"])
def test_job_inside_of_a_script(opening: str) -> None:
    """A job that a script writes or submits is linted as a job of its own, at its own lines."""
    findings = texts({"all.sh": f"#!/bin/bash\n{opening}\n{HEAD}{RUN}\nEOF\n"}).findings
    assert [(each.code, each.line) for each in findings] == [("ECH201", 7)]


def test_variable_of_the_script_that_writes_a_job() -> None:
    """A value that the outer script fills in is known in the inner script."""
    inner = HEAD.replace("--nodes=1", "--nodes=$N") + "torchrun --nnodes=2 --nproc-per-node=4 train.py\n"
    linted = texts({"all.sh": f"#!/bin/bash\nN=2\nsbatch <<EOF\n{inner}EOF\n"})
    assert codes(linted) == {"ECH203", "ECH206"}


def test_script_that_lies_beside_is_found(tmp_path: Path) -> None:
    """A script that the job calls is read from its folder; its mistake is said at the call, with its own line."""
    (tmp_path / "go.sh").write_text(f"#!/bin/bash\n{RUN}\n")
    (tmp_path / "job.sh").write_text(f"{HEAD}srun ./go.sh\n")
    command = [sys.executable, "-m", "echelon", "lint", "--format", "github", "job.sh"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "line=5" in done.stdout and "go.sh, line 2" in done.stdout, done.stdout + done.stderr


def test_what_is_called() -> None:
    """Files that are run or sourced are called; those that are removed, copied or printed are not."""
    text = "source env.sh\nbash tools/run.sh x\nsrun python train.py\nrm old.sh\necho new.sh\n./all\n/opt/x.sh\n"
    assert called(text) == ["env.sh", "tools/run.sh", "train.py", "./all"]


def test_variables_that_grow_without_end() -> None:
    """Variables that double each other, and scripts that call each other, are given up."""
    doubled = "A=xxxxxxxxxx\n" + "A=$A$A\n" * 40 + "srun $A\n"
    assert len(run(doubled)[-1]) < 5000
    assert len(run("./a.sh\n", a="./b.sh\n./b.sh\n", b="./a.sh\n./a.sh\n")) < 100
