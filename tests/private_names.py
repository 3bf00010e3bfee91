"""Find the private names of PyTorch in a piece of code."""

import ast
import re
from collections.abc import Iterable

NOT_OF_PYTORCH = frozenset(
    (
        "_getframe", "_current_frames", "_replace", "_asdict", "_inst", "_exit", "_register_atexit", "_finalizing",
        "_blksize", "_io", "_thread", "_bit_generator", "_rand", "_datasource", "_file_openers",
        "_NormalAccessor",  # Python, numpy
        "_tp_plan", "_init_weights",  # models of transformers, and nanoGPT's
        "_echelon",
    )
)  # fmt: skip
_PRIVATE = re.compile(r"_[A-Za-z]\w*")
_IN_MODULE = re.compile(r"torch(\.\w+)*\._[A-Za-z]\w*(\.\w+)*")


def own(trees: Iterable[ast.AST]) -> set[str]:
    """Return the names that code defines itself: classes, functions, variables and attributes of self."""
    names: set[str] = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
                names.add(node.attr)
    return names


def foreign(tree: ast.AST, own_names: set[str]) -> list[str]:
    """Return the private names that code takes from elsewhere, with their lines."""
    known = NOT_OF_PYTORCH | own_names
    return [
        f"line {node.lineno}: {name}"  # type: ignore[attr-defined]
        for node in ast.walk(tree)
        for name in _names(node, own_names)
        if _PRIVATE.fullmatch(name) and name not in known and not name.startswith("_echelon_")
    ]


def _names(node: ast.AST, own_names: set[str]) -> list[str]:
    if isinstance(node, ast.Attribute):
        return [] if _is_self(node.value) and node.attr in own_names else [node.attr]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    if isinstance(node, ast.Import):
        return [part for alias in node.names for part in alias.name.split(".")]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return ["_in_a_module"] if _IN_MODULE.fullmatch(node.value) else [node.value]
    return []


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
