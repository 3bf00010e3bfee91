"""Forward hooks of the script inside of a model: they get the samples of their rank, not the whole batch."""

import functools
from typing import Any, Optional

from torch import nn

from ...pytorch import internals

_NOT_OF_A_SCRIPT = ("site-packages", "dist-packages", "/echelon/train/", "/_echelon/")


def first_place(model: nn.Module) -> Optional[str]:
    """Return where a hook of the script stands, "Linear, at train.py:12"; None where there is none."""
    for module in model.modules():
        for hook in (hook for hooks in internals.forward_hooks(module) for hook in hooks.values()):
            code = _code_of(hook)
            if code is not None and not any(part in code.co_filename for part in _NOT_OF_A_SCRIPT):
                name = code.co_filename.rpartition("/")[2]
                return "%s, at %s:%d" % (type(module).__name__, name, code.co_firstlineno)
    return None


def _code_of(hook: Any) -> Any:
    """Return the code object of a function, method or partial; None for a callable without Python code."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    hook = getattr(hook, "__func__", hook)
    return getattr(hook, "__code__", None)
