"""Pack what runs on compute nodes into one zip that any python3 can start.

Inside, the package is called _echelon, so that a script's own `import echelon` is never answered from the zip.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import zipfile
from importlib.machinery import SourceFileLoader
from types import CodeType

_ROOMS = ("node", "environment")
_MAIN = "import sys\n\nfrom _echelon.node.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"


def write(path: str) -> None:
    """Write node.pyz: sources for every Python, and this interpreter's bytecode beside them."""
    with zipfile.ZipFile(path, "w") as archive:
        _add(archive, "__main__", _MAIN.encode(), compile(_MAIN, "node.pyz", "exec"))
        _add(archive, "_echelon/__init__", b"", compile("", "node.pyz", "exec"))
        for room in _ROOMS:
            folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), room)
            for name in sorted(os.listdir(folder)):
                if name.endswith(".py"):
                    inner = "sitecustomize" if name == "start_hook.py" else f"_echelon/{room}/{name[:-3]}"
                    loader = SourceFileLoader(f"echelon.{room}.{name[:-3]}", os.path.join(folder, name))
                    code = loader.get_code(loader.name)  # from __pycache__ where it is there: no compiling at each run
                    if code is not None:
                        _add(archive, inner, loader.get_data(loader.path), code)


def _add(archive: zipfile.ZipFile, name: str, source: bytes, code: CodeType) -> None:
    archive.writestr(zipfile.ZipInfo(name + ".py"), source)
    archive.writestr(zipfile.ZipInfo(name + ".pyc"), _unchecked_bytecode(code))


def _unchecked_bytecode(code: CodeType) -> bytes:
    """Return a .pyc that is valid without a look at the source (PEP 552, flag 0b01)."""
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)
