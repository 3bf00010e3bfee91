"""The rules of the house that a machine can see."""

import ast
import functools
import gc
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests import private_names
from tests.import_circles import circles
from tests.replaced_names import assignments

from echelon.hardware import vendors
from echelon.launch import package

SOURCE = Path(__file__).parent.parent / "src" / "echelon"
FILES = sorted(SOURCE.rglob("*.py"))
NODE_ROOMS = ("node", "topology", "environment", "hardware")
ON_NODES = [path for path in FILES if path.relative_to(SOURCE).parts[0] in NODE_ROOMS]
SLURM_WORDS = re.compile(r"SLURM_|#SBATCH|\bsbatch\b")
SLURM_ROOMS = ("scheduler/slurm/", "environment/")


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0]


@functools.cache
def tree(path: Path) -> ast.Module:
    """Return a file as Python reads it; all tests read it once."""
    gc.disable()  # a collection in between would look through all trees
    read = ast.parse(path.read_text())
    gc.freeze()
    gc.enable()
    return read


def test_slurm_words_stand_in_their_rooms() -> None:
    """Slurm's own words stand only where Slurm is understood."""
    others = [path for path in FILES if not name(path).startswith(SLURM_ROOMS)]
    assert [name(path) for path in others if SLURM_WORDS.search(path.read_text())] == []


def test_vendors_are_named_in_one_room() -> None:
    """No other room compares with a vendor's name: what differs is an attribute of the vendor."""
    names = {vendor.name for vendor in vendors.ALL}
    others = [path for path in FILES if room(path) != "hardware"]
    constants = [(path, node) for path in others for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)]
    assert [f"{name(path)}:{node.lineno}" for path, node in constants if node.value in names] == []


def test_files_and_functions_stay_short() -> None:
    """A module has at most 400 lines, a function at most 60."""
    assert [name(path) for path in FILES if path.read_text().count("\n") > 400] == []
    functions = [(path, node) for path in FILES for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
    assert [f"{name(path)}: {node.name}" for path, node in functions if (node.end_lineno or 0) - node.lineno > 60] == []


def test_no_circle_of_files() -> None:
    """No files import one another, type checkers' imports included."""
    assert circles(SOURCE) == []


def test_circle_is_found(tmp_path: Path) -> None:
    """A circle that only a type checker sees counts; an import in a single direction does not."""
    house = tmp_path / "house"
    (house / "room").mkdir(parents=True)
    (house / "__init__.py").touch()
    (house / "room" / "__init__.py").write_text("from ..low import value\n")
    (house / "room" / "one.py").write_text("def act():\n    from . import two\n")
    (house / "room" / "two.py").write_text("if TYPE_CHECKING:\n    from house.room.one import act\n")
    (house / "low.py").write_text("value = 1\n")
    assert circles(house) == [{"house.room.one", "house.room.two"}]


IN_RANKS_ROOMS = ("train", "tracing", "bandwidth", "checkpoint")
COUNTS_DIGITS = ("environment/digits.py", "lint/shell.py", "machines/schema.py", "hardware/files.py")


def test_numbers_are_read_at_one_door() -> None:
    """No other file asks Python what a digit is: "²" is one, and int() refuses it; it also refuses 5,000 digits."""
    others = [path for path in FILES if room(path) not in IN_RANKS_ROOMS and name(path) not in COUNTS_DIGITS]
    assert [name(path) for path in others if re.search(r"\.is(digit|decimal|numeric)\(", path.read_text())] == []


PICKLING = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve")
OBJECTS = re.compile(r"(all_gather|gather)_object|(broadcast|scatter|send|recv)_object_list")


def mistrusted(node: ast.AST) -> str:
    """Return what a piece of code does that would run what it has received; empty for any other."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        return next((f"imports {module}" for module in names if module.partition(".")[0] in PICKLING), "")
    if isinstance(node, ast.Attribute) and OBJECTS.fullmatch(node.attr):
        return f"uses {node.attr}, which pickles"
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "__import__"):
        is_constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
        return "" if is_constant else f"calls {node.func.id}()"
    if ast.unparse(node.func) == "torch.load":
        safe = [word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords]
        return "" if any(safe) else "calls torch.load() without weights_only=True"
    return ""


def test_nothing_that_was_received_is_executed() -> None:
    """No pickle, no eval, no object collective of PyTorch, and no torch.load that would unpickle."""
    nodes = [(path, node) for path in FILES for node in ast.walk(tree(path))]
    assert [f"{name(path)}:{node.lineno} {what}" for path, node in nodes if (what := mistrusted(node))] == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from pickle import loads", "import dill.source", "dist.all_gather_object(a, b)",
        "send = dist.send_object_list", "eval(text)", "torch.load(path)", "torch.load(path, weights_only=False)",
    ],
)  # fmt: skip
def test_the_rule_sees_what_it_forbids(code: str) -> None:
    """Each of these would fail the test above."""
    assert any(mistrusted(node) for node in ast.walk(ast.parse(code)))


def imported(node: ast.AST) -> list[str]:
    """Return the packages that a statement imports by their full names."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
    return [one.partition(".")[0] for one in names]


def test_node_code_is_python_3_9() -> None:
    """What runs on compute nodes parses as Python 3.9 and imports the standard library and itself alone."""
    allowed = {*sys.stdlib_module_names, "_echelon", "sitecustomize"}
    for path in ON_NODES:
        nodes = ast.walk(ast.parse(path.read_text(), str(path), feature_version=(3, 9)))
        assert {top for node in nodes for top in imported(node)} <= allowed, name(path)


ASKS_DEVICES = re.compile(r"\btorch\.(cuda|xpu|mps|accelerator)\b|\.is_(cuda|xpu)\b|device\.type [!=]=")
IN_RANKS = [path for path in FILES if path.relative_to(SOURCE).parts[0] in IN_RANKS_ROOMS]
DOORS_TO_DEVICES = ("train/wire/device.py", "checkpoint/host_memory.py", "tracing/pretended.py")


def test_devices_are_asked_at_one_door() -> None:
    """Questions about devices stand in one file of each room of the ranks, where tests put a stand-in."""
    others = [path for path in IN_RANKS if name(path) not in DOORS_TO_DEVICES]
    assert [name(path) for path in others if ASKS_DEVICES.search(path.read_text())] == []


SET_ELSEWHERE = {
    "train/check/spots.py": "setattr(self._times, ",  # our own numbers
    "train/strategies/blocks.py": "setattr(model.get_submodule(parent), ",  # the user's model
    "train/wire/plain_data.py": "setattr(error, ",  # an error that another rank has sent
    "train/rng/states.py": "random._inst.gauss_next",  # a part of the state of Python's generator
    "train/fsdp.py": "setattr(root, ",  # the user's model
    "train/global_tensors/pieces.py": "setattr(",  # an object that is made here
    "train/global_tensors/rules.py": "setattr(tensor.local, ",  # the tensor of a batch
}
"""What is set on objects that no other code shares, and so needs no row in the table of patches."""


def test_names_of_others_are_replaced_at_one_door() -> None:
    """Nothing of PyTorch, Python or a library is assigned to but by train/patches.py, which lists and undoes it."""
    for path in IN_RANKS:
        allowed = SET_ELSEWHERE.get(name(path), "" if name(path) == "train/patches.py" else "no other")
        assert [one for one in assignments(tree(path)) if allowed not in one] == [], name(path)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.Tensor.backward = f", "from torch import nn\nnn.functional.dropout = f",
        "import builtins, io\nbuiltins.open, io.open = f, f", "import sys\ndel sys.excepthook",
        "from torch.utils.data import DataLoader\nDataLoader.__iter__ = f",
        "from torch import nn\nfunctional: Any = nn.functional\nfunctional.dropout = f",
        "import torch\nowner = torch.optim\nkind = owner.Adam\nkind.step += f", "setattr(owner, name, f)",
        "import torch\nfor kind in (torch.optim.SGD, torch.optim.Adam):\n    kind.step = f",
        "import logging as log\nlog.Logger.warn = f", "optimizer.register_optimizer_step_pre_hook(f)",
        "stack.callback(setattr, owner, name, f)", "import sys\nsys.modules['echelon'] = f",
    ],
)  # fmt: skip
def test_replaced_name_is_found(code: str) -> None:
    """Each of these would fail the test above."""
    assert len(assignments(ast.parse(code))) >= 1


def test_own_names_may_be_assigned() -> None:
    """What is ours, or a call gives, is no name of others."""
    code = "import torch\nfrom .own import Own\nOwn.rule = f\nmodel = torch.nn.GELU()\nmodel.bias = f\nself.x = f"
    assert assignments(ast.parse(code)) == []


DOOR_TO_PYTORCH = SOURCE / "pytorch"
WITH_TORCH = (*IN_RANKS_ROOMS, "trials")


def test_private_names_of_pytorch_are_taken_at_one_door() -> None:
    """A leading underscore of PyTorch, also in a string, stands only in the room that knows the versions."""
    own = private_names.own(tree(path) for path in FILES if DOOR_TO_PYTORCH not in path.parents)
    files = [path for path in FILES if room(path) in WITH_TORCH]
    assert {name(path): names for path in files if (names := private_names.foreign(tree(path), own))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "torch._C._len_torch_dispatch_stack()", "from torch.utils._pytree import tree_map", "tensor._local_tensor",
        "from torch.nn.modules.batchnorm import _NormBase", "getattr(module, '_orig_mod', module)",
        "hooks.replace('torch.jit._script', 'save', wrap)", "self._auto_collation", "import torch._dynamo",
    ],
)  # fmt: skip
def test_private_name_is_found(code: str) -> None:
    """Each of these would fail the test above."""
    assert private_names.foreign(ast.parse(code), {"_own"}) != []


def pythons() -> list[str]:
    """Return every Python from 3.9 on that can be found here."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    found = {sys.executable}
    for folder in folders:
        for minor in range(9, 20):
            path = Path(folder) / f"python3.{minor}"
            if "shims" not in folder and os.access(path, os.X_OK):
                found.add(str(path))
    return sorted(found)


@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_zip_starts_with_any_python(tmp_path: Path, python: str) -> None:
    """node.pyz starts under every Python, and gives a program its environment."""
    archive = tmp_path / "node.pyz"
    package.write(str(archive))
    command = [python, "-I", "-S", str(archive), "exec", "sh", "-c", "echo $RANK of $WORLD_SIZE"]
    environ = {"PATH": os.environ["PATH"]}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 of 1\n", "")


@pytest.mark.parametrize("variable", ["ECHELON_SCALE", "ECHELON_PROFILE"])
@pytest.mark.parametrize("python", pythons(), ids=lambda path: Path(path).name)
def test_old_python_of_a_rank_is_named(tmp_path: Path, python: str, variable: str) -> None:
    """An image may have Python 3.9, which starts ranks and cannot scale them."""
    archive, script = tmp_path / "node.pyz", tmp_path / "train.py"
    package.write(str(archive))
    script.write_text("import sys\nprint(sys.version_info >= (3, 10))")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(archive)}
    plain = subprocess.run([python, str(script)], capture_output=True, text=True, env=environ, check=False)
    assert (plain.returncode, plain.stderr) == (0, "")
    if plain.stdout == "True\n":
        return
    environ[variable] = "{}"
    asked = subprocess.run([python, str(script)], capture_output=True, text=True, env=environ, check=False)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert f"Python 3.10 or newer in the ranks; {python} is Python 3." in asked.stderr


def test_zip_holds_nothing_under_our_own_name(tmp_path: Path) -> None:
    """A script's `import echelon` is never answered from the zip."""
    package.write(str(tmp_path / "node.pyz"))
    with zipfile.ZipFile(tmp_path / "node.pyz") as archive:
        assert not [entry for entry in archive.namelist() if entry.startswith("echelon")]


def test_command_line_imports_no_torch() -> None:
    """`echelon run --dry-run` imports neither torch nor numpy."""
    code = (
        "import sys; from echelon.cli import main\n"
        f"assert main(['run', '--dry-run', {str(Path(__file__).parent.parent / 'examples' / 'allreduce.py')!r}]) == 0\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


GUIDE = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text("utf-8")


def test_guide_names_files_and_folders_that_exist() -> None:
    """Each path that CONTRIBUTING names exists: in the tables, and along the five paths through the house."""
    paths = re.findall(r"`((?:\w+/)+[\w.]*)`", GUIDE.partition("## The house")[2])
    assert len(paths) > 60
    assert [path for path in paths if not (SOURCE / path).exists() and not (SOURCE.parents[1] / path).exists()] == []


def test_picture_is_that_of_the_linter() -> None:
    """The picture of the house has each room, and none above one that may import it."""
    text = (SOURCE.parents[1] / "pyproject.toml").read_text("utf-8")
    rows = re.findall(r"^layers = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)[0].strip().splitlines()
    floor = {part: number for number, layer in enumerate(rows) for part in re.findall(r"\w+", layer)}
    picture = GUIDE.partition("## The house")[2].split("```")[1]
    drawn = ", ".join(re.findall(r"^[ └├─│]*(\w+(?:, \w+)*)(?=  |$)", picture, re.MULTILINE)).split(", ")
    assert sorted(drawn) == sorted(floor)
    assert [floor[part] for part in drawn] == sorted(floor.values())


def test_guide_stays_short() -> None:
    """CONTRIBUTING is read in five minutes."""
    assert len(GUIDE.encode()) <= 7500


def test_make_installs_what_the_tests_need() -> None:
    """The list of `make test` is that of the package's extra: a clone has nothing else."""
    root = Path(__file__).parents[1]
    (extra,) = re.findall(r"^test = \[(.*)\]", (root / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    rule = (root / "Makefile").read_text("utf-8").partition("$(VENV)/.test:")[2].partition("@touch")[0]
    wanted = re.findall(r'"([^"]+)"', extra)
    assert len(wanted) > 10
    assert [name for name in wanted if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", rule)] == []
