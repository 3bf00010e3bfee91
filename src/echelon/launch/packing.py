"""Pack the sources of node.pyz.

Inside, the package is called _echelon, so that a script's own `import echelon` is never answered from the zip.
"""

from __future__ import annotations

import importlib.util
import io
import marshal
import os
import tempfile
import zipfile
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from types import CodeType

from echelon import __version__

_MAIN = "import sys\n\nfrom _echelon.node.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
MAX_KEPT = 8  # versions and interpreters that one user may use


def pack(sources: Mapping[str, str]) -> bytes:
    """Return the zip: the sources for any Python, and this interpreter's bytecode."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        _add(archive, "__main__", _MAIN.encode(), compile(_MAIN, "node.pyz", "exec"))
        version = f"__version__ = {__version__!r}\n"
        _add(archive, "_echelon/__init__", version.encode(), compile(version, "node.pyz", "exec"))
        for name, source in sources.items():
            inner = "sitecustomize" if name == "node/start_hook" else f"_echelon/{name}"
            loader = SourceFileLoader("echelon." + name.replace("/", "."), source)
            code = loader.get_code(loader.name)  # from __pycache__ if it is there
            if code is not None:
                _add(archive, inner, loader.get_data(source), code)
    return content.getvalue()


def keep(content: bytes, path: str) -> None:
    """Write the zip into the cache atomically, and remove the oldest zips."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(fresh, path)
    except OSError:
        os.unlink(fresh)
        raise
    kept = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("node-")]
    for old in sorted(kept, key=os.path.getmtime)[:-MAX_KEPT]:
        os.unlink(old)


def _add(archive: zipfile.ZipFile, name: str, source: bytes, code: CodeType) -> None:
    archive.writestr(zipfile.ZipInfo(name + ".py"), source)
    archive.writestr(zipfile.ZipInfo(name + ".pyc"), _unchecked_bytecode(code))


def _unchecked_bytecode(code: CodeType) -> bytes:
    """Return a .pyc that is loaded without checking its source (PEP 552, flag 0b01)."""
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(code)
