"""Read and write the text files that stand for images.

stand-in image
python=/usr/bin/python3
env=WITH_CONDA=true
runscript=/usr/bin/env IN_RUNSCRIPT=1
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import Fatal

MAGIC = "stand-in image"


@dataclass(frozen=True)
class Image:
    """What is inside a container and what is hidden from it."""

    python: str = "/usr/bin/python3"
    """The interpreter that `python3` is inside: no virtual environment's."""
    site: str = ""
    """A folder of packages that `python` finds as well, without echelon."""
    runscript: str = ""
    """What `run` puts before the command."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables of the image, which win over the host's."""
    hidden: Sequence[str] = ()
    """Folders of the host that are empty inside."""
    sources: str = ""
    """A folder that stands for the host's root where a bind's source does not exist: /opt/cray …"""

    def write(self, path: Path) -> Path:
        """Write the image file and return its path."""
        lines = [MAGIC, f"python={self.python}", f"site={self.site}", f"runscript={self.runscript}"]
        lines += [f"env={name}={value}" for name, value in self.environ.items()]
        lines += [f"hidden={folder}" for folder in self.hidden]
        path.write_text("\n".join([*lines, f"sources={self.sources}", ""]))
        return path


def read(path: str) -> Image:
    """Read an image file."""
    path = os.path.abspath(path)
    try:
        with open(path, errors="replace") as file:
            magic, *lines = file.read().splitlines() or [""]
    except FileNotFoundError:
        raise Fatal(
            f"could not open image {path}: failed to retrieve path for {path}: lstat {path}: no such file or directory"
        ) from None
    except OSError as error:
        raise Fatal(f"could not open image {path}: {error.strerror}") from None
    if magic != MAGIC:
        raise Fatal(f"could not open image {path}: image format not recognized")
    pairs = [(key, value) for key, _, value in (line.partition("=") for line in lines) if value]
    single = dict(pairs)
    return Image(
        python=single.get("python", Image.python),
        site=single.get("site", ""),
        runscript=single.get("runscript", ""),
        environ=dict(_pair(value) for key, value in pairs if key == "env"),
        hidden=[value for key, value in pairs if key == "hidden"],
        sources=single.get("sources", ""),
    )


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value
