"""Find the assignments to names of PyTorch, Python and libraries in a piece of code."""

import ast
import re
from collections.abc import Iterator

GLOBAL = re.compile(r"setattr|delattr|register_(module|optimizer)_\w*hook")
"""Functions that set any name, and doors of PyTorch for hooks on all modules and optimizers."""
DOOR = "patches.hook"
"""The door for the latter."""
OURS = ("echelon", "_echelon")


def assignments(tree: ast.AST) -> list[str]:
    """Return what is assigned or deleted on what was imported from elsewhere, and on its entries, with its lines.

    Names are followed through assignments (`functional = nn.functional`) and loops over a tuple of them; calls of
    GLOBAL count whatever they are called with.
    """
    foreign = _imported(tree)
    while _spread(tree, foreign):
        pass
    found = []
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = [one for target in node.targets for one in _parts(target)]
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            targets = [node.target]
        elif isinstance(node, ast.Call) and _sets_any_name(node):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
        for target in targets:
            container = target.value if isinstance(target, ast.Subscript) else target
            is_environ = container is not target and ast.unparse(container) == "os.environ"
            if isinstance(container, ast.Attribute) and _root(container) in foreign and not is_environ:
                found.append(f"line {target.lineno}: {ast.unparse(target)}")
    return found


def _sets_any_name(call: ast.Call) -> bool:
    functions = () if ast.unparse(call.func) == DOOR else (call.func, *call.args)
    return any(GLOBAL.fullmatch(ast.unparse(function).rpartition(".")[2]) for function in functions)


def _imported(tree: ast.AST) -> set[str]:
    """Return the names that stand for modules, classes and functions from elsewhere."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(one.asname or one.name).partition(".")[0] for one in node.names if not _is_ours(one.name)}
        elif isinstance(node, ast.ImportFrom) and not node.level and not _is_ours(node.module or ""):
            names |= {one.asname or one.name for one in node.names}
    return names


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


def _spread(tree: ast.AST, foreign: set[str]) -> bool:
    """Add names that are given to what is foreign; return whether there were any."""
    before = len(foreign)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            pairs = [(node.target, node.value)]
        elif isinstance(node, (ast.For, ast.comprehension)):
            values = node.iter.elts if isinstance(node.iter, (ast.Tuple, ast.List)) else []
            pairs = [(node.target, value) for value in values]
        else:
            continue
        for target, value in pairs:
            if (
                isinstance(target, ast.Name)
                and isinstance(value, (ast.Name, ast.Attribute))
                and _root(value) in foreign
            ):
                foreign.add(target.id)
    return len(foreign) > before


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _parts(part)
    else:
        yield target


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
