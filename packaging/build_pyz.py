"""Pack echelon into one file that python3 starts: python packaging/build_pyz.py echelon.pyz [tomli's folder]."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same sources make the same file


def files(*folders: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what is packed: each file's name in the archive, and its content."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc":
                yield path.relative_to(folder.parent).as_posix(), path.read_bytes()


def build(target: Path, *folders: Path) -> None:
    """Write the archive, and make it executable."""
    contents = dict(files(ROOT / "src" / "echelon", *folders))
    digest = hashlib.sha256(repr(sorted(contents.items())).encode()).hexdigest()[:16]
    starter = (ROOT / "packaging" / "pyz_main.py").read_text("utf-8").replace("{digest}", digest)
    contents["__main__.py"] = starter.encode()
    with target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(contents.items()):
                archive.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)
    target.chmod(0o755)


if __name__ == "__main__":
    build(Path(sys.argv[1]), *map(Path, sys.argv[2:]))
