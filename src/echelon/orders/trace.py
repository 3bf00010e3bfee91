"""What `echelon fit` asks of the program that traces a training: it reads the order as JSON, as its argument."""

from collections.abc import Mapping
from typing import NamedTuple

SCRIPT, MODULE, FUNCTION, CONFIG = "script", "module", "function", "config"  # the kinds of targets


class TraceOrder(NamedTuple):
    """What to trace."""

    target: str
    """The path of a script, a module, `module:function`, or the path of a configuration."""
    kind: str = SCRIPT
    arguments: tuple[str, ...] = ()
    out: str = ""
    """The file for the log, in a folder that the caller removes; the files of the script come beside it."""
    device: str = "gpu"
    """"gpu": with the kernels of a device; "cpu": with those of a CPU."""
    device_bytes: int = 80 << 30
    """The memory that torch.cuda tells the script."""
    assumed: Mapping[str, float] | None = None
    """Values of tensors by the line that reads them: {"train.py:31": 0.5}; None: there are none."""
    optimizer: str = "adamw"
    """For a function and a configuration: adamw, adam, momentum or sgd."""
    rows: int = 1
    """For a configuration, with length and dtype."""
    length: int = 0
    dtype: str = "float32"
