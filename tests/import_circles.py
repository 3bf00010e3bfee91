"""The files that import one another in a circle, with imports that only type checkers see."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path


def circles(source: Path) -> list[set[str]]:
    """Return each group of modules below a folder that import one another; the folder is the package."""
    files = {_name(path, source): path for path in source.rglob("*.py")}
    imports = {module: set(_imports(module, path, files)) for module, path in files.items()}
    reached = {module: _reached(module, imports) for module in files}
    groups = defaultdict(set)
    for module in files:
        group = {other for other in reached[module] if module in reached[other]}
        if group:
            groups[min(group)] |= group
    return list(groups.values())


def _name(path: Path, source: Path) -> str:
    parts = (source.name, *path.relative_to(source).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(module: str, path: Path, files: dict[str, Path]) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                if name in files or base in files:
                    yield name if name in files else base


def _reached(start: str, imports: dict[str, set[str]]) -> set[str]:
    """Return all that a module imports, directly or not."""
    reached: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting.extend(imports[module])
    return reached
