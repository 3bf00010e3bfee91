"""Show the model of one device to tools that call it: traces, exports, counters of FLOPs."""

import sys
from collections.abc import Callable
from functools import wraps

from torch import nn

from ..pytorch import internals
from ..pytorch import modules as torch_modules
from . import patches
from .global_tensors.model_calls import Owner
from .global_tensors.tensors import plain
from .wire import world

_LOOKERS = (
    ("torch.jit", ("trace", "trace_module", "script")),
    (torch_modules.TRACERS[0], ("trace", "trace_module")),
    ("torch.fx", ("symbolic_trace",)),
    (torch_modules.TRACERS[1], ("symbolic_trace",)),
    ("torch.onnx", ("export",)),
    ("torch.export", ("export",)),
)


def install(run: Owner, share_buffers: Callable[[nn.Module], None]) -> None:
    """Hook these tools: they get whole tensors, and modules without the hooks of their calls."""

    def looking(original: Callable[..., object], name: str) -> Callable[..., object]:
        @wraps(original)
        def look(*args: object, **kwargs: object) -> object:
            model = args[0] if args else next(iter(kwargs.values()), None)
            if isinstance(model, nn.Module) and not world.is_alone():
                share_buffers(model)
            if name == "script":
                kwargs = internals.one_frame_up(kwargs)
            with run.calls.idle():
                return original(*plain(args), **plain(kwargs))

        return look

    for name, functions in _LOOKERS:
        module = sys.modules.get(name)
        for function in functions if module is not None else ():
            original = getattr(module, function, None)
            if original is not None:
                why = "A trace or an export sees the model of one device."
                patches.replace(module, function, looking(original, function), why=why)
