"""Name the weights that DistributedDataParallel misses, and the lines of the script that would have used them."""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from collections.abc import Iterable, Iterator

from torch import nn

from ..wire import lines

MOST_NAMES = 8
_UNUSED = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")


def told(error: BaseException, owners: Iterable[object]) -> str:
    """Return "reg.weight, reg.bias (used at train.py:13)" for an error of the first wrapped model among its owners."""
    match = _UNUSED.search(str(error))
    models = [each for each in owners if isinstance(each, nn.parallel.DistributedDataParallel)]
    if match is None or not models:
        return ""
    ignored = getattr(models[0], "parameters_to_ignore", ())
    weights = models[0].module.named_parameters()
    names = [name for name, weight in weights if weight.requires_grad and name not in ignored]
    unused = [names[int(index)] for index in match[1].split() if int(index) < len(names)]
    more = f" and {len(unused) - MOST_NAMES} more" if len(unused) > MOST_NAMES else ""
    places = dict.fromkeys(place for name in unused for place in _places(models[0].module, name, set(unused)))
    used = f" (used at {', '.join(list(places)[:MOST_NAMES])})" if places else ""
    return ", ".join(unused[:MOST_NAMES]) + more + used


def _places(module: nn.Module, name: str, unused: set[str]) -> list[str]:
    """Return the script's lines with the largest part of a model that has this weight, and none that is used."""
    places: list[str] = []
    parts = name.split(".")
    for depth, part in enumerate(parts, 1):
        places = sorted(set(_uses(type(module), part))) or places  # items of a list have no line of their own
        module = getattr(module, part)
        prefix = ".".join(parts[:depth]) + "."
        if depth == len(parts) or all(
            prefix + each in unused for each, weight in module.named_parameters() if weight.requires_grad
        ):
            break
    return places


def _uses(owner: type, attribute: str) -> Iterator[str]:
    """Yield the lines of a class of the script in which an attribute of its objects is used."""
    for name, function in vars(owner).items():
        code = getattr(function, "__code__", None)
        if name == "__init__" or code is None or not code.co_argcount or not lines.is_file_of_script(code.co_filename):
            continue
        try:
            source, first = inspect.getsourcelines(code)
            tree = ast.parse(textwrap.dedent("".join(source)))
        except (OSError, SyntaxError, ValueError):
            continue  # no source, or a part of an expression
        used = f"{code.co_varnames[0]}.{attribute}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == used:
                yield f"{os.path.basename(code.co_filename)}:{first + node.lineno - 1}"
