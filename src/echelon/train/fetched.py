"""Write the variables of a script that a notebook asks for, when the script ends: plain data, tensors and modules."""

import json
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from ..orders import fetch

_open = open  # before it is hooked: rank 0 writes a file that the notebook reads


def begin(environ: Mapping[str, str]) -> None:
    """Let this rank write what the order names at the end of the script; other ranks help where a value has parts."""
    order = fetch.read(environ)
    if order is not None:
        is_main = environ.get("RANK", "0") == "0"
        # before all handlers of atexit: with one of them, a rank that does not write leaves the others
        threading._register_atexit(partial(_end, order, is_main=is_main))  # type: ignore[attr-defined]


def _end(order: fetch.FetchOrder, *, is_main: bool) -> None:
    if getattr(sys, "last_type", None) is not None:
        return  # the script ended with an error
    variables = vars(sys.modules["__main__"])
    problems = {name: "the cell has no such variable at its end" for name in order.names if name not in variables}
    values = {name: variables[name] for name in order.names if name in variables}
    content = (_encoded if "torch" in sys.modules else _as_json)(values, problems)
    if is_main:
        with _open(order.path, "wb") as file:
            file.write(content)
        with _open(order.path + fetch.FACTS, "w", encoding="utf-8") as file:
            json.dump({"has_tensors": "torch" in sys.modules, "problems": problems}, file)


def _as_json(values: Mapping[str, Any], problems: dict[str, str]) -> bytes:
    """Return the values of a script without PyTorch, and note which are no plain data."""
    content = {}
    for name, value in values.items():
        try:
            is_plain = json.loads(json.dumps(value)) == value
        except (TypeError, ValueError):
            is_plain = False
        if not is_plain:
            problems[name] = f"without PyTorch, JSON has no place for it or what it holds: a {type(value).__qualname__}"
        else:
            content[name] = value
    return json.dumps(content).encode()


def _encoded(values: Mapping[str, Any], problems: dict[str, str]) -> bytes:
    """Return the values, without pickle; all ranks call it with the same names.

    A module becomes its state_dict(); tensors are whole, on the CPU and without gradients.
    """
    import torch

    from .global_tensors.tensors import map_tensors, plain
    from .scaling_error import ScalingError
    from .wire import gather, plain_data

    content: dict[str, Any] = {}
    for name, value in values.items():
        try:
            state = dict(value.state_dict()) if isinstance(value, torch.nn.Module) else value
            state = map_tensors(plain(state), lambda tensor: gather.whole(tensor).detach().cpu().contiguous())
            plain_data.encode(state)
        except ScalingError as error:
            error.withdraw()
            problems[name] = str(error).partition("\n")[0]
        else:
            content[name] = state
    return plain_data.encode(content)
