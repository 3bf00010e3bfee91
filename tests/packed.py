"""The modules of node.pyz, imported once for all runs that are forked: importing takes half of the time of a short one.

A run whose node.pyz has another size imports its own. (The bytes differ each time that Python's code is written.)
"""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from echelon.launch import package, packing

LOOKER = "_echelon.train.patches"
_archive = Path()
_size_bytes = 0
of_agent: dict[str, ModuleType] = {}
"""What an agent imports, by name."""
of_rank: dict[str, ModuleType] = {}
"""What the ranks of an unchanged script import, and the process that forks them."""
of_scaled_rank: dict[str, ModuleType] = {}
"""The same with `--scale`."""


def import_all(folder: Path) -> None:
    """Import what agents and ranks import, from an archive in this folder, and put it aside."""
    global _archive, _size_bytes
    _archive = folder / "node.pyz"
    _size_bytes = _archive.write_bytes(packing.pack(package.sources()))
    sys.path.insert(0, str(_archive))
    _import("node.__main__", "node.guard", "node.agent_spec", "node.agent", "node.connect")
    of_agent.update(_imported())
    for name in of_agent:
        del sys.modules[name]  # what an agent changes in its modules is not the ranks'
    _import("node.warm", "node.pulse", "node.warning_signals", "train.measuring.install")
    of_rank.update(_imported())
    _import("train.automatic", "train.start", "train.files.install", "train.parallelism.replicated")
    of_scaled_rank.update(_imported())
    sys.modules[LOOKER].look_through()
    for name in of_scaled_rank:
        del sys.modules[name]
    sys.path.remove(str(_archive))


def restore(archive: str, modules: Mapping[str, ModuleType]) -> None:
    """Have this process find the modules as if it had imported them from this archive, if that has the same size."""
    if os.stat(archive).st_size != _size_bytes:
        return
    for module in modules.values():
        names = vars(module)
        names["__file__"] = names["__file__"].replace(str(_archive), archive)
        if "__path__" in names:
            names["__path__"] = [path.replace(str(_archive), archive) for path in names["__path__"]]
    sys.modules.update(modules)


def _import(*names: str) -> None:
    for name in names:
        importlib.import_module(f"_echelon.{name}")


def _imported() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "_echelon"}
