"""Read what this Python's PyTorch was built for from its files: importing it would take seconds."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence


def rocm(search_path: Sequence[str]) -> str:
    """Return the ROCm version, "6.2"; empty if PyTorch is missing or built for something else.

    `torch/version.py` holds a line such as `hip: Optional[str] = '6.2.41133-dd7f95766'`.
    """
    for folder in search_path:
        try:
            with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
                match = re.search(r"^hip\b[^=]*=\s*['\"](\d+\.\d+)", file.read(), re.MULTILINE)
        except OSError:
            continue
        return match.group(1) if match else ""
    return ""
