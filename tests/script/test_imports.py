"""What reading a script says about its imports."""

import ast
import os
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import some

from echelon.script import distributes
from echelon.script.branches import Certainty, running
from echelon.script.find import Script, resolve
from echelon.script.imports import Imports, read_imports

LIBRARY = Path(sysconfig.get_path("stdlib"))


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def read(root: Path, text: str, files: dict[str, str] | None = None, search_path: tuple[str, ...] = ()) -> Imports:
    write(root, {"train.py": text, **(files or {})})
    script = resolve("train.py", module=False, cwd=str(root), search_path=(*search_path, str(LIBRARY)))
    return read_imports(script)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os, json.decoder as d\n", ("os", "json.decoder")),
        ("from torch import nn, cuda\nfrom a.b import *\n", ("torch:nn", "torch:cuda", "a.b")),
        ("from __future__ import annotations\nimport torch\n", ("torch",)),
        ("try:\n    import b\nexcept ImportError:\n    import d\nelse:\n    import c\n", ("b", "c")),
        ("with open('x') as f:\n    import torch\n", ("torch",)),
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b\n", ("b",)),
        ("import typing\nif not typing.TYPE_CHECKING:\n    import b\n", ("typing", "b")),
        ("import sys\nif sys.version_info >= (3, 8):\n    import b\nelse:\n    import c\n", ("sys", "b")),
        ("import sys\nif sys.platform == 'win32':\n    import b\nelif flag:\n    import c\n", ("sys", "c")),
        ("if flag:\n    import b\nelse:\n    import c\n", ("b",)),
        ("if __name__ == '__main__':\n    import b\n", ("b",)),
        ("class A:\n    import b\n", ("b",)),
        ("def main():\n    import b\n    if x:\n        import c\n", ("b",)),
        ("def f():\n    g()\ndef g():\n    import b\ndef never():\n    import c\nFire(f)\n", ("b",)),
        ("def main(): pass\nasync def main():\n    import b\n", ("b",)),
        ("", ()),
    ],
)  # fmt: skip
def test_the_statements_that_run_are_read(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    """What probably runs is preloaded in the script's order, what probably does not run is not."""
    assert read(tmp_path, text).preload == expected


def test_own_modules_are_followed_and_left_to_the_ranks(tmp_path: Path) -> None:
    """A module beside the script is read where it is imported, never returned; packages and cycles too."""
    files = {
        "model.py": "import numpy\nimport train\nfrom pkg.layers import attention\n",
        "pkg/__init__.py": "import json\n",
        "pkg/layers/__init__.py": "from . import attention\nfrom .. import extra\n",
        "pkg/layers/attention.py": "import math\nfrom ...outside import x\n",
        "pkg/extra.py": "import pkg, model, csv\nif __name__ == '__main__':\n    import pdb\n",
    }
    found = read(tmp_path, "import model\nimport torch\n", files)
    assert found.preload == ("numpy", "torch", "json", "math", "csv")
    assert found.local == ("model", "train", "pkg", "pkg.layers", "pkg.layers.attention", "pkg.extra")
    assert found.skipped == (("...outside", "a relative import that leaves its package"),)
    assert found.uses == {"numpy", "json", "math", "csv", "torch", "pdb"}
    assert found.packages == ("numpy", "torch")


def test_an_own_module_is_never_run(tmp_path: Path) -> None:
    """A module that would stop the program is only read."""
    found = read(tmp_path, "import stop\n", {"stop.py": "import json\nraise SystemExit('run')\n"})
    assert (found.preload, found.local) == (("json",), ("stop",))


def test_a_local_package_hides_the_installed_one_as_python_decides(tmp_path: Path) -> None:
    """A package or file beside the script wins; a bare folder loses against an installed package."""
    site = tmp_path / "lib/python3.11/site-packages"
    write(site, {"datasets/__init__.py": "", "wandb/__init__.py": "", "yaml.py": ""})
    write(
        tmp_path / "app",
        {"datasets/__init__.py": "", "wandb/run-1/log.txt": "", "yaml.py": "", "bare/x.py": "import csv"},
    )
    text = "import datasets\nimport wandb\nimport yaml\nfrom bare import x\n"
    found = read(tmp_path / "app", text, search_path=(str(site),))
    assert found.preload == ("wandb", "csv")
    assert found.local == ("datasets", "yaml", "bare", "bare.x")


def test_a_file_cannot_hide_what_is_built_into_python(tmp_path: Path) -> None:
    """A local sys.py or os.py is not what `import` gives; a local random.py is."""
    found = read(tmp_path, "import sys, os, random\n", {"sys.py": "", "os.py": "", "random.py": ""})
    assert (found.preload, found.local) == (("sys", "os"), ("random",))


def test_own_folders_on_the_search_path_are_own_code(tmp_path: Path) -> None:
    """What PYTHONPATH or an editable install adds is the user's code, read and left to the ranks."""
    write(tmp_path / "src", {"mylib/__init__.py": "import csv\n"})
    found = read(tmp_path / "app", "import mylib\n", search_path=(str(tmp_path / "src"),))
    assert (found.preload, found.local) == (("csv",), ("mylib",))


def test_a_module_script_resolves_its_relative_imports(tmp_path: Path) -> None:
    """`-m pkg.train` reads its parents first and its siblings by dots."""
    files = {
        "pkg/__init__.py": "import csv\n",
        "pkg/train.py": "from .model import Net\nfrom . import data\n",
        "pkg/model.py": "import torch\n",
        "pkg/data.py": "import json\n",
    }
    write(tmp_path, files)
    found = read_imports(resolve("pkg.train", module=True, cwd=str(tmp_path), search_path=()))
    assert found.preload == ("csv", "torch", "json")
    assert found.local == ("pkg", "pkg.model", "pkg.data")


def test_an_installed_module_script_may_preload_its_siblings_but_not_itself(tmp_path: Path) -> None:
    """`-m tool.run` of an installed package is no own code; runpy would warn if tool.run were imported before."""
    site = tmp_path / "lib/python3.11/site-packages"
    write(site, {"tool/__init__.py": "", "tool/run.py": "from . import run, parts\n", "tool/parts.py": ""})
    found = read_imports(resolve("tool.run", module=True, cwd=str(tmp_path), search_path=(str(site),)))
    assert (found.preload, found.local) == (("tool", "tool:parts"), ())


def test_an_archive_is_read_where_it_lies(tmp_path: Path) -> None:
    """A zip's __main__ is read; its own modules are known as its own."""
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as archive:
        archive.writestr("__main__.py", "import torch, inside\n")
        archive.writestr("inside.py", "import json\n")
    found = read_imports(resolve("app.pyz", module=False, cwd=str(tmp_path), search_path=()))
    assert (found.preload, found.local) == (("torch",), ("inside",))
    assert found.skipped == (("inside", "has no source to read"),)


def test_unsafe_packages_are_replaced_by_what_is_safe(tmp_path: Path) -> None:
    """MPI and lightning are left to the ranks with the reason; torch comes before the fork in their place."""
    found = read(tmp_path, "from mpi4py import MPI\nimport lightning.pytorch as pl\nimport mpi4py\n")
    for_lightning = ("torch", "torch._dynamo", "scipy.signal", "matplotlib.pyplot")
    assert found.preload == ("mpi4py", *for_lightning, "transformers:AutoModel", "transformers:AutoTokenizer")
    assert [name for name, _ in found.skipped] == ["mpi4py:MPI", "lightning.pytorch"]
    assert found.skipped[0][1] == "calls MPI_Init_thread when it is imported, and MPI does not survive a fork"
    assert {"mpi4py", "lightning"} <= found.uses


def test_own_module_with_the_name_of_what_is_safe_is_left_to_the_ranks(tmp_path: Path) -> None:
    """A transformers.py beside the script is not the package that torchmetrics means, and would run before the fork."""
    write(tmp_path, {"transformers.py": "print('mine')\n"})
    found = read(tmp_path, "import lightning\n")
    assert found.preload == ("torch", "torch._dynamo", "scipy.signal", "matplotlib.pyplot")


def test_what_torch_imports_later_is_added_at_the_end(tmp_path: Path) -> None:
    """An optimizer anywhere in the script brings torch._dynamo, after all that the script names itself."""
    text = "import torch\nfrom torch import optim\nimport json\ndef train():\n    return optim.AdamW([])\n"
    assert read(tmp_path, text).preload == ("torch", "torch:optim", "json", "torch._dynamo")


@pytest.mark.parametrize(
    ("setting", "held"),
    [
        ("os.environ['HF_HOME'] = '/x'", True),
        ("os.environ.setdefault('HF_HOME', '/x')", True),
        ("os.environ.update(HF_HOME='/x')", True),
        ("os.environ.update({'HF_HOME': '/x'})", True),
        ("os.putenv(name, '1')", True),
        ("load_dotenv()", True),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '0'", False),
        ("os.environ['NCCL_DEBUG'] = 'INFO'", False),
    ],
)
def test_an_import_after_a_setting_that_it_reads_is_left_to_the_ranks(tmp_path: Path, setting: str, held: bool) -> None:
    """What the script puts into the environment for an import must be there when the import happens."""
    found = read(tmp_path, f"import os, torch\n{setting}\nimport transformers, json\n")
    assert ("transformers" not in found.preload) is held
    assert found.preload[-1] == "json"
    assert "torch" in found.preload


def test_mentions_tell_how_a_package_is_used(tmp_path: Path) -> None:
    """Dotted names are followed through aliases, also in functions, but not where only types are checked."""
    text = """
        import torch.distributed as dist
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import deepspeed
        def f():
            import horovod.torch as hvd
            dist.init_process_group("nccl")
    """
    found = read(tmp_path, text)
    assert "torch.distributed.init_process_group" in found.mentions
    assert {"torch", "horovod"} <= found.uses
    assert "deepspeed" not in found.uses


def test_a_long_file_is_read_line_by_line(tmp_path: Path) -> None:
    """10 MB of script keep their plain imports, and the report says what was not read."""
    text = b"import torch, numpy as np\nfrom json import (\n  loads)\nx = [" + b"1, " * 3_500_000 + b"]\n"
    (tmp_path / "train.py").write_bytes(text)
    found = read_imports(Script(kind="file", path=str(tmp_path / "train.py"), folder=str(tmp_path), content=text))
    assert found.preload == ("torch", "numpy", "json")
    reason = "more than 512 KiB of source: only imports at the start of a line were read"
    assert found.skipped == ((str(tmp_path / "train.py"), reason),)


def test_a_chain_of_own_modules_deeper_than_the_stack_is_followed(tmp_path: Path) -> None:
    """900 modules, each importing the next and the first, end without a limit of depth."""
    files = {f"m{n}.py": f"import m{n + 1}, m0\n" for n in range(900)}
    found = read(tmp_path, "import m0\n", {**files, "m900.py": "import json\n"})
    assert (len(found.local), found.preload) == (901, ("json",))


def test_more_own_modules_than_are_read_are_reported(tmp_path: Path) -> None:
    """Beyond 1,000 own modules the rest is named as not read."""
    files = {f"m{n}.py": "" for n in range(1001)}
    found = read(tmp_path, "".join(f"import m{n}\n" for n in range(1001)), files)
    assert found.skipped == (("m1000", "not read: the script has more than 1000 modules of its own"),)


def test_own_modules_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    """A broken, undecodable or vanished module is a reason, not an error: the rank will meet it."""
    (tmp_path / "odd.py").write_bytes(b"x = '\xff'\n")
    found = read(tmp_path, "import broken, odd, json\n", {"broken.py": "x = = 1\n"})
    assert found.preload == ("json",)
    paths = [str(tmp_path / name) for name in ("broken.py", "odd.py")]
    assert found.skipped == tuple((path, "this Python cannot parse it") for path in paths)


def test_the_standard_library_is_read_without_an_error(tmp_path: Path) -> None:
    """Files that ship with Python are read, each as a script; in the tier "all" every file."""
    files = []
    for folder, inner, names in os.walk(LIBRARY):
        inner[:] = [name for name in inner if name != "site-packages"]  # not looked into: 30,000 files
        files += [os.path.join(folder, name) for name in names if name.endswith(".py")]
    assert len(files) > 500
    for path in some(sorted(files), 8):
        content = Path(path).read_bytes()
        found = read_imports(Script(kind="file", path=path, folder=str(tmp_path), content=content))
        assert "" not in found.preload


SNIPPETS = tuple(path.read_bytes()[:3000] for path in sorted(LIBRARY.glob("*.py"))[:60])


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SNIPPETS), st.integers(0, 3000), st.integers(0, 3000), st.binary(max_size=20))
def test_source_cut_and_spoiled_anywhere_is_read_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, source: bytes, start: int, end: int, noise: bytes
) -> None:
    """Half a file, or one with stray bytes in it, gives what can be read and never raises."""
    path = tmp_path_factory.getbasetemp() / "spoiled.py"
    content = source[:start] + noise + source[end:]
    found = read_imports(Script(kind="file", path=str(path), folder=os.path.dirname(path), content=content))
    assert isinstance(found.preload, tuple)


def test_reading_imports_nothing_of_the_users(tmp_path: Path) -> None:
    """After reading, no module of the script's folder is loaded, and no cache of Python knows the folder."""
    read(tmp_path, "import own_module_of_a_test\n", {"own_module_of_a_test.py": ""})
    assert "own_module_of_a_test" not in sys.modules
    assert str(tmp_path) not in sys.path_importer_cache


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("import torch\nimport tensorflow as tf\nloss.backward()\n", ""),
        ("import torch\nimport helper\nloss.backward()\n", ""),
        ("import torch\nimport tensorflow as tf\n", "it imports tensorflow"),
        ("import jax\nfx.backward()\n", "it imports jax"),
        ("import torch\nimport horovod.torch\nloss.backward()\n", "it imports horovod"),
    ],
)
def test_other_arrays_beside_a_loop_of_pytorch(tmp_path: Path, text: str, how: str) -> None:
    """TensorFlow and JAX read data and write summaries there; without such a loop they train, and distribute."""
    helper = "def of(x):\n    import jax\n    return jax.numpy.asarray(x)\n"
    assert distributes.how(read(tmp_path, text, {"helper.py": helper})) == how


def test_only_the_first_statement_of_a_try_is_certain() -> None:
    """It may fail, and then the others do not run, and a handler does."""
    tree = ast.parse("try:\n    a\n    b\nexcept E:\n    c\n")
    found = {ast.unparse(node): certainty for node, certainty in running(tree.body, as_main=True)}
    assert [found[name] for name in "abc"] == [Certainty.CERTAIN, Certainty.LIKELY, Certainty.SELDOM]
