"""What would fail in every rank, or train something else, is refused before the start: by reading, in 0.1 s."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.run.shell import Shell
from tests.tiers import in_all

LIGHTNING = "import lightning as L\n"


def refused(shell: Shell, *arguments: str, **environ: str) -> str:
    done = shell.fork(*arguments, **environ)
    assert done.exit_code == 2, done.said
    assert "Traceback" not in done.said
    assert "hint: " in done.said
    assert not shell.files("echelon-runs/*")
    return done.said


def accepted(shell: Shell, *arguments: str, **environ: str) -> None:
    done = shell.fork("--dry-run", *arguments, **environ)
    assert done.exit_code == 0, done.said


def fake(shell: Shell, *packages: str) -> str:
    """Make packages that are found and never imported; return the PYTHONPATH that has them."""
    for package in packages:
        shell.script("raise ImportError('nobody may import this')\n", f"packages/{package}/__init__.py")
    return f"{shell.environ['PYTHONPATH']}:{shell.folder}/packages"


def hide(shell: Shell, package: str) -> str:
    """Make a package one that is not installed; return the PYTHONPATH that does so."""
    shell.script(
        "import importlib.util as util\nfind = util.find_spec\n"
        f"util.find_spec = lambda name, *rest: None if name == {package!r} else find(name, *rest)\n",
        "hide/sitecustomize.py",
    )
    return f"{shell.folder}/hide:{shell.environ['PYTHONPATH']}"


@pytest.mark.parametrize(
    ("call", "options", "parts"),
    [
        ("L.Trainer(devices=4)", ["-n", "2"], ("line 2", "devices=4", "2 ranks on each node", "echelon run -n 4 t.py")),
        ("L.Trainer(accelerator='cpu', devices=4)", ["-n", "1"], ("devices=4", "1 rank on each", "echelon run -n 4")),
        ("L.Trainer(max_epochs=3)", ["-n", "2"], ("without devices", "train alone", "Trainer(devices=2")),
        ("L.Trainer(devices='auto')", ["-n", "2"], ("devices='auto'", "train alone")),
        ("L.Trainer(devices=1)", ["-n", "2"], ("devices=1", "train alone")),
        ("L.Fabric(accelerator='cpu', devices=3)", ["-n", "2"], ("Fabric(devices=3)",)),
        ("L.Trainer(devices=[0, 1, 2])", ["-n", "2"], ("[0, 1, 2]", "2 ranks")),
        ("L.Trainer(devices=2, num_nodes=4)", ["-n", "2"], ("num_nodes=4", "4 nodes", "has 1")),
        ("L.Trainer(devices=-1)", ["-n", "2", "--share-devices"], ("devices=-1",)),
        ("N = 8\nL.Trainer(devices=N)", ["-n", "2"], ("line 3", "devices=8")),
    ],
)  # fmt: skip
def test_lightnings_devices_against_the_ranks(
    shell: Shell, call: str, options: list[str], parts: Sequence[str]
) -> None:
    """Its own count of devices and nodes is compared with the run's."""
    shell.script(f"{LIGHTNING}{call}\n", "t.py")
    said = refused(shell, *options, "t.py", PYTHONPATH=fake(shell, "lightning"), CUDA_VISIBLE_DEVICES="")
    assert all(part in said for part in parts), said


@pytest.mark.parametrize(
    ("call", "devices"),
    [
        ("L.Trainer(devices=2)", ""),
        ("L.Trainer(devices='2')", ""),
        ("L.Trainer()", "0,1"),
        ("L.Trainer(devices=-1)", "0,1"),
        ("L.Trainer(accelerator='gpu', devices='auto')", ""),
        ("L.Trainer(devices=int(os.environ['LOCAL_WORLD_SIZE']))", ""),
        ("L.Trainer(**options)", ""),
        ("L.Trainer(devices=2); L.Trainer(devices=1)", ""),
        ("import transformers; transformers.Trainer()", ""),
    ],
)
def test_what_fits_or_cannot_be_read_is_let_through(shell: Shell, call: str, devices: str) -> None:
    """Also a second Trainer that tests on one device, and numbers that only running would show."""
    shell.script(f"{LIGHTNING}import accelerate\n{call}\n", "t.py")
    path = fake(shell, "lightning", "transformers", "accelerate")
    accepted(shell, "-n", "2", "t.py", PYTHONPATH=path, CUDA_VISIBLE_DEVICES=devices)


OWN_STARTS = [
    ("import torch.multiprocessing as mp\nimport torch.distributed as dist\ndef work(rank):\n    dist.init_process_"
     "group('gloo', rank=rank, world_size=2)\nmp.spawn(work, nprocs=2)", "line 5", "torch.multiprocessing.spawn()"),
    ("from accelerate import notebook_launcher\nnotebook_launcher(print, num_processes=2)", "line 2",
     "notebook_launcher"),
    ("import torch, subprocess\nsubprocess.run(['torchrun', '--nproc-per-node=2', 'x.py'])", "line 2",
     "torchrun --nproc"),
    ("import torch, os\nos.system('python -m torch.distributed.run x.py')", "line 2",
     "python -m torch.distributed.run"),
    ("import torch, subprocess, sys\nsubprocess.call([sys.executable, '-m', 'torch.distributed.launch', 'x.py'])",
     "line 2", "… -m torch.distributed.launch"),
    ("import torch, subprocess\nprint(subprocess.check_output(['torchrun', 'x.py']))", "line 2", "torchrun x.py"),
    ("import torch, os\nos.system(f'accelerate launch --num_processes {2} x.py')", "line 2", "accelerate launch"),
    ("import subprocess\nline = ['torchrun', '--nproc-per-node=2', 'x.py']\nsubprocess.run(line)", "line 3",
     "torchrun --nproc"),
    ("import os, shlex, subprocess\nline = f'python -m torch.distributed.run {os.getcwd()}/x.py'\n"
     "subprocess.run(shlex.split(line))", "line 3", "python -m torch.distributed.run"),
    ("import torch.distributed as dist\nimport torch.multiprocessing as mp\ndef work(rank):\n    dist.init_process_"
     "group('gloo', rank=rank, world_size=2)\nfor rank in range(2):\n    mp.Process(target=work, args=(rank,)).start()",
     "line 6", "Process(target=work)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "what"), OWN_STARTS)
def test_launcher_within_a_launcher(shell: Shell, text: str, line: str, what: str) -> None:
    """A script that starts its ranks is named at once, with the call and its line; one rank may start them."""
    shell.script(text, "t.py")
    said = refused(shell, "-n", "2", "t.py", PYTHONPATH=fake(shell, "accelerate"))
    assert all(part in said for part in (line, what, "each of the 2 ranks", "echelon run -n 1 t.py")), said
    accepted(shell, "-n", "1", "t.py", PYTHONPATH=fake(shell, "accelerate"))


@pytest.mark.parametrize(
    "text",
    [
        OWN_STARTS[0][0] + "\nimport os\nrank = os.environ.get('RANK')",  # started by hand if no launcher has
        "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)",  # prepares files, for example
        "import torch, subprocess\nsubprocess.run(['git', 'rev-parse', 'HEAD'])",
        "import torch, subprocess\nsubprocess.run(command)",
        "import subprocess\nline = ['torchrun']\nline = ['git', 'status']\nsubprocess.run(line)",
        "import torch.distributed as dist\nfrom multiprocessing import Process\nProcess(target=print)\n"
        "def main():\n    dist.init_process_group('gloo')",
        "import torch, os\nos.system(f'')",
    ],
)
def test_processes_that_are_no_ranks(shell: Shell, text: str) -> None:
    """A script that asks for its rank, or starts processes for another purpose, is started."""
    shell.script(text, "t.py")
    accepted(shell, "-n", "2", "t.py")


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2},
         ("30 is not 8", "× 2 (gradient_accumulation_steps) × 2 ranks = 32", '"train_batch_size": 32')),
        ({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 8}, ("not a multiple", "8", "2 ranks = 16",
            ": 32")),
        ({"train_batch_size": 3}, ("3 is not a multiple of 2 ranks = 2",)),
        ('{"train_batch_size": 8,, }', ("not valid JSON", "line 1, column ", "json.tool")),
        ('{"train_batch_size": 8', ("not valid JSON",)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("how", ["option", "launcher", "script"])
def test_deepspeeds_configuration(shell: Shell, how: str, config: object, parts: Sequence[str]) -> None:
    """Named by an option, on DeepSpeed's own line or in the script: it must parse, and multiply."""
    shell.script(config if isinstance(config, str) else json.dumps(config), "ds.json")
    named = "deepspeed.initialize(config='ds.json')" if how == "script" else ""
    shell.script(f"import deepspeed\n{named}\n", "t.py")
    words = {
        "option": ["-n", "2", "t.py", "--deepspeed_config", "ds.json"],
        "launcher": ["--", "deepspeed", "--num_gpus", "2", "t.py", "--deepspeed", "--deepspeed_config=ds.json"],
        "script": ["-n", "2", "t.py"],
    }
    said = refused(shell, *words[how], PYTHONPATH=fake(shell, "deepspeed"))
    assert all(part in said for part in ("ds.json", *parts)), said


@pytest.mark.parametrize(
    "config",
    [
        '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}',
        '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8}',
        '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 7}',
        '{"train_batch_size": 3, "sequence_parallel_size": 2}',
        '{\n  # Hjson, "quoted"\n  "train_batch_size": 32 // all ranks\n  "fp16": {"enabled": true,},\n}\n',
        "{}",
    ],
)
def test_configurations_that_deepspeed_takes(shell: Shell, config: str) -> None:
    """What DeepSpeed works out by itself, leaves to Transformers, or reads as Hjson, is let through."""
    shell.script(config, "ds.json")
    shell.script("import deepspeed\n", "t.py")
    accepted(shell, "-n", "2", "t.py", "--deepspeed_config", "ds.json", PYTHONPATH=fake(shell, "deepspeed"))


def test_a_configuration_that_is_not_there(shell: Shell) -> None:
    """The nearest names are offered."""
    shell.script("{}", "ds_config.json")
    shell.script("import deepspeed\n", "t.py")
    path = fake(shell, "deepspeed")
    said = refused(shell, "-n", "2", "t.py", "--deepspeed_config", "ds_confg.json", PYTHONPATH=path)
    assert "echelon cannot read DeepSpeed's configuration" in said
    assert "ds_config.json" in said


@pytest.mark.parametrize("module", ["lightning", "deepspeed", "horovod.torch", "tensorflow", "jax", "mpi4py.MPI"])
def test_a_framework_that_is_missing(shell: Shell, module: str) -> None:
    """The package, the line that imports it, the interpreter, and the extra that installs it."""
    top = module.partition(".")[0]
    shell.script(f"import os\nimport {module}\n", "t.py")
    said = refused(shell, "-n", "2", "t.py", PYTHONPATH=hide(shell, top))
    assert f"t.py, line 2, imports {top}, which is not installed" in said
    assert "pip install 'echelon[" in said


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import horovod_\nexcept ImportError:\n    pass\n",
        "import horovod\n",
        "import sys\nsys.path.append('x')\n",
    ],
)
def test_what_may_be_there_all_the_same(shell: Shell, text: str) -> None:
    """In `try`, beside the script, or on a path that the script adds, nothing is called missing."""
    shell.script("", "horovod.py")
    shell.script(text + ("import deepspeed\n" if "sys.path" in text else ""), "t.py")
    accepted(shell, "-n", "2", "t.py")


def test_a_framework_that_is_too_old_for_torch(shell: Shell) -> None:
    """Its version is read from its metadata, and the conflict is named."""
    path = fake(shell, "deepspeed", "torch")
    shell.script(
        "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.14.0\n", "packages/deepspeed-0.14.0.dist-info/METADATA"
    )
    shell.script("Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n", "packages/torch-2.6.0.dist-info/METADATA")
    shell.script("import deepspeed\n", "t.py")
    ahead = ":".join(reversed(path.split(":")))
    said = refused(shell, "-n", "2", "t.py", PYTHONPATH=ahead)
    assert "deepspeed 0.14.0 with torch 2.6.0" in said
    assert "pip install -U deepspeed" in said


def test_a_framework_that_was_built_for_another_torch(shell: Shell) -> None:
    """DeepSpeed's compiled operators are of one PyTorch; another one is installed."""
    path = fake(shell, "deepspeed", "torch")
    shell.script("installed_ops={'cpu_adam': True}\ntorch_info={'version': '2.1'}\n",
                 "packages/deepspeed/git_version_info_installed.py")  # fmt: skip
    shell.script("__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n",
                 "packages/torch/version.py")  # fmt: skip
    shell.script(
        "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8\n", "packages/deepspeed-0.19.8.dist-info/METADATA"
    )
    shell.script("import deepspeed\n", "t.py")
    path = ":".join(reversed(path.split(":")))
    said = shell.run("-n", "2", "t.py", PYTHONPATH=path).said  # not by a fork, which has another torch already
    assert "operators built for torch 2.1, but torch 2.6.0+cu124 is installed" in said


def test_transformers_without_accelerate(shell: Shell) -> None:
    """Transformers installs without it, and its Trainer does not start."""
    shell.script("from transformers import Trainer\nTrainer()\n", "t.py")
    path = fake(shell, "transformers")
    said = refused(shell, "-n", "2", "t.py", PYTHONPATH=f"{hide(shell, 'accelerate')}:{path}")
    assert "transformers.Trainer, which needs accelerate" in said
    assert "echelon[hf]" in said


@pytest.mark.parametrize(
    ("value", "part"),
    [('{"cluster": {"worker": ["a:1", "b:2", "c:3"]}, "task": {"type": "worker", "index": 1}}', "worker 1 of 3"),
     ("not json", "is not JSON with")],
)  # fmt: skip
@pytest.mark.parametrize("how", ["shell", "option"])
def test_a_cluster_that_the_user_set_for_tensorflow(shell: Shell, how: str, value: str, part: str) -> None:
    """Every rank would be the same worker."""
    shell.script("import tensorflow\n", "t.py")
    path = fake(shell, "tensorflow")
    options = ["--env", f"TF_CONFIG={value}"] if how == "option" else []
    environ = {} if how == "option" else {"TF_CONFIG": value}
    said = refused(shell, "-n", "2", *options, "t.py", PYTHONPATH=path, **environ)
    assert part in said
    assert "unset TF_CONFIG" in said
    accepted(shell, "-n", "1", "t.py", PYTHONPATH=path, TF_CONFIG=value)


MPI = "from mpi4py import MPI\nprint(MPI.COMM_WORLD.Get_size())\n"


def test_ranks_that_only_their_own_launcher_makes_known(shell: Shell) -> None:
    """Each would be alone, without a word; one rank, or one that meets through torch, is let pass."""
    shell.script(MPI, "t.py")
    environ = {"PYTHONPATH": fake(shell, "mpi4py", "torch")}
    said = refused(shell, "-n", "2", "t.py", **environ)
    assert "line 1, imports mpi4py: COMM_WORLD holds only ranks" in said
    assert "echelon run -- mpirun -n 2 python t.py" in said
    accepted(shell, "-n", "1", "t.py", **environ)
    shell.script(MPI + "import torch.distributed as dist\ndist.init_process_group()\n", "t.py")
    accepted(shell, "-n", "2", "t.py", **environ)


def _lock(shell: Shell, name: str, *, minutes: int) -> Path:
    """Leave the lock of a build that ended so long ago."""
    lock = shell.script("", f"extensions/{name}/lock")
    for path in (lock, lock.parent):
        os.utime(path, (time.time() - 60 * minutes,) * 2)
    return lock


LOADS = "from torch.utils import cpp_extension as e\ne.load('x', [])\n"


@pytest.mark.parametrize("text", ["import deepspeed\n", LOADS])
def test_a_lock_that_a_dead_build_left(shell: Shell, text: str) -> None:
    """PyTorch would wait for it without an end: named, with the command that removes it; one that is held is not."""
    shell.script(text, "t.py")
    folder = str(shell.folder / "extensions")
    environ = {"PYTHONPATH": fake(shell, "deepspeed", "torch"), "TORCH_EXTENSIONS_DIR": folder}
    old, older = _lock(shell, "cpu_adam", minutes=125), _lock(shell, "utils", minutes=300)
    said = refused(shell, "-n", "2", "t.py", **environ)
    assert f"a build of utils has ended without removing its lock, {older}" in said
    assert "nothing has changed there for 5 h 00 min" in said
    assert f"hint: rm {older} {old}\n" in said
    with open(old), open(older):  # as FileBaton.try_acquire keeps it open
        accepted(shell, "-n", "2", "t.py", **environ)
    shell.script("", "t.py")
    accepted(shell, "-n", "2", "t.py", **environ)


def test_a_lock_that_may_be_of_another_node(shell: Shell) -> None:
    """One that was taken a minute ago is worth a note, and the run goes on."""
    shell.script("", "deepspeed.py")
    shell.script("import deepspeed\n", "t.py")
    python = f"py{sys.version_info.major}{sys.version_info.minor}_cpu"
    lock = shell.script("", f"cache/torch_extensions/{python}/cpu_adam/lock")
    done = shell.run("t.py", XDG_CACHE_HOME=str(shell.folder / "cache"))
    assert done.exit_code == 0, done.said
    assert f"note: no process here holds {lock}; unless another node builds cpu_adam now" in done.said
    assert done.said.count("note: ") == 1


@pytest.mark.parametrize(
    ("call", "is_noted"),
    [
        ("jax.distributed.initialize()", True),
        in_all("jax.distributed.initialize(local_device_ids=[0])", True),
        ("jax.distributed.initialize(num_processes=N, process_id=K)", False),
        in_all("jax.distributed.initialize('localhost:1', 2, K)", False),
        in_all("jax.distributed.initialize(cluster_detection_method='mpi4py')", False),
    ],
)
def test_jax_finds_its_ranks_in_slurm_only(shell: Shell, call: str, is_noted: bool) -> None:
    """A note with what the call needs; the run goes on, because the line may never be reached."""
    shell.script("", "jax.py")
    shell.script(f"import jax, os\nif len(os.environ) < 0:\n    {call}\n", "t.py")
    done = shell.run("-n", "2", "t.py")
    assert done.exit_code == 0, done.said
    assert ("note: t.py, line 3: jax.distributed.initialize() gets" in done.said) == is_noted, done.said
