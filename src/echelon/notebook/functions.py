"""Run a function of an importable file on several ranks: echelon.launch(function, ranks=4, args=[…])."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from echelon.errors import UsageError
from echelon.notebook import ranks as of_ranks

_TEXT = """import json
from {module} import {name} as function

result = function(*json.loads({args!r}))
"""


def call(function: Callable[..., Any], ranks: int, args: Sequence[Any], options: Sequence[str]) -> Any:
    """Return what the function returns on rank 0."""
    module, name = str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", ""))
    if module in ("", "__main__", "builtins") or "." in name or "<" in name:
        raise UsageError(
            f"{name or repr(function)} cannot be imported by ranks: it is not at the top of an importable file",
            hint="put it into a file beside this one; in a notebook, run the cell with %%echelon -n 4",
        )
    try:
        text = json.dumps(list(args))
        if json.loads(text) != list(args):
            raise ValueError("JSON changes a tuple, or a key that is no text")
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"args of {name}: {error}; they travel to the ranks as plain data",
            hint="give numbers, text, lists and dicts; let the function read the rest from files",
        ) from None
    words = [*(["-n", str(ranks)] if ranks else []), *options]
    script = _TEXT.format(module=module, name=name, args=text)
    return of_ranks.run(script, words, names=["result"])["result"]
