"""--scale FILE.py:CLASS: a parallelism of the user's own."""

import os
import re
from collections.abc import Mapping

from echelon.errors import UsageError
from echelon.plan.exchange import SCALES

_FORM = re.compile(r"(?P<path>.+\.py):(?P<name>[^\W\d]\w*)")
_NOT_OWN = {
    "exact": "its sums are in the order of --scale data or fsdp",
    "sync-every": "it is a parallelism itself: ranks train alone and meet",
}
"""Options that choose another parallelism, and why they contradict."""


def scale(values: Mapping[str, str]) -> str:
    """Return the value of --scale; raise UsageError if it is neither a known word nor FILE.py:CLASS."""
    text = values.get("scale", "auto")
    if text in SCALES:
        return text
    match = _FORM.fullmatch(text)
    if not match:
        raise UsageError(
            f"--scale {text or repr('')}: the choices are {', '.join(SCALES)}, or a class in a file: FILE.py:CLASS",
            hint=f"echelon run --scale {SCALES[0]} …",
        )
    for option, why in _NOT_OWN.items():
        if option.replace("-", "_") in values:
            raise UsageError(f"--{option} does not go with --scale {text}: {why}", hint=f"remove --{option}")
    _refuse_without_class(text, match["path"], match["name"])
    return text


def _refuse_without_class(text: str, path: str, name: str) -> None:
    """Refuse a file that cannot be read, or has no such class."""
    import ast

    from echelon.script.find import read_source
    from echelon.script.source import judge, parse

    if not os.path.exists(path):
        raise UsageError(f"--scale {text}: there is no file {path}", hint=f"ls {os.path.dirname(path) or '.'}")
    source = read_source(path, path)
    judge(source, path, hint=f"python -m py_compile {path}")
    tree = parse(source, path)
    nodes = list(ast.walk(tree)) if tree is not None else []
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    imported = [
        alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assigned = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    if name not in (*classes, *imported, *assigned):
        raise UsageError(
            f"--scale {text}: {path} has no class {name}; its classes are {', '.join(classes) or 'none'}",
            hint=f"--scale {path}:{classes[0]}" if classes else f"write in {path}: class {name}(echelon.Replicated): …",
        )
