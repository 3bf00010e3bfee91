"""Pack what runs on compute nodes into one zip that any python3 can start.

Inside, the package is called _echelon, so that a script's own `import echelon` is never answered from the zip.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import zipfile
from types import CodeType

_ROOMS = ("node", "environment")
_MAIN = "import sys\n\nfrom _echelon.node.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"


def write(path: str) -> None:
    """Write node.pyz: sources for every Python, and this interpreter's bytecode beside them."""
    with zipfile.ZipFile(path, "w") as archive:
        _add(archive, "__main__", _MAIN)
        _add(archive, "_echelon/__init__", "")
        for room in _ROOMS:
            folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), room)
            for name in sorted(os.listdir(folder)):
                if name.endswith(".py"):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        source = file.read().replace("from echelon.", "from _echelon.")
                    inner = "sitecustomize" if name == "start_hook.py" else f"_echelon/{room}/{name[:-3]}"
                    _add(archive, inner, source)


def _add(archive: zipfile.ZipFile, name: str, source: str) -> None:
    archive.writestr(zipfile.ZipInfo(name + ".py"), source)
    code = compile(source, name + ".py", "exec", dont_inherit=True)
    archive.writestr(zipfile.ZipInfo(name + ".pyc"), _unchecked_bytecode(code))


def _unchecked_bytecode(code: CodeType) -> bytes:
    """Return a .pyc that is valid without a look at the source (PEP 552, flag 0b01)."""
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)
