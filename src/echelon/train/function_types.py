"""Types of functions, of their arguments and of states that several parts of a training share."""

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
"""A function of PyTorch, Python or a script: only its caller knows its arguments and its value."""
Wrap = Callable[[Function], Function]
"""Makes the function that stands in place of another."""
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
"""The arguments of such a function."""
ParamGroup = dict[str, Any]
"""Parameters with the settings that an optimizer has for them."""
StateDict = dict[str, Any]
"""What a `state_dict` has: tensors, numbers and, by their names, more of them."""
