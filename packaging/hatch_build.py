"""What hatchling does before it packs a wheel: write the manual page and the completions, which go into share/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHARED = {
    "share/man/man1/echelon.1": ("man",),
    "share/bash-completion/completions/echelon": ("completion", "bash"),
    "share/zsh/site-functions/_echelon": ("completion", "zsh"),
    "share/fish/vendor_completions.d/echelon.fish": ("completion", "fish"),
}
"""Where man and the shells look, below the folder of an installation, and the command that prints the file."""


class Shared(BuildHookInterface):
    """Add the files to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Write the files into a folder for now."""
        self.folder = Path(tempfile.mkdtemp())
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ECHELON_", "XDG_"))}
        paths = [os.path.join(self.root, "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        # no file of the person who builds: it would tell others of that person's machines
        environ = {
            **kept,
            "HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        for number, (target, command) in enumerate(SHARED.items()):
            done = subprocess.run(
                [sys.executable, "-m", "echelon", *command], env=environ, capture_output=True, check=True
            )
            (self.folder / str(number)).write_bytes(done.stdout)
            build_data["shared_data"][str(self.folder / str(number))] = target

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the folder."""
        shutil.rmtree(self.folder)
