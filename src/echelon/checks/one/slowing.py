"""Was something left switched on that slows every step?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.environment import digits
from echelon.node.survey.nouns import Survey


def _on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "off", "false", "no")


def _at_least(level: int) -> Callable[[str], bool]:
    return lambda value: digits.whole(value.strip(), -1) >= level


SLOWS: tuple[tuple[str, Callable[[str], bool], str, str], ...] = (
    ("CUDA_LAUNCH_BLOCKING", _on, "the program waits for each kernel", "CUDA programming guide"),
    ("HIP_LAUNCH_BLOCKING", _on, "the program waits for each kernel", "HIP documentation: debugging"),
    ("AMD_SERIALIZE_KERNEL", _on, "the program waits for each kernel", "HIP documentation: debugging"),
    ("AMD_SERIALIZE_COPY", _on, "the program waits for each copy", "HIP documentation: debugging"),
    ("HSA_ENABLE_SDMA", lambda value: value == "0", "kernels make copies, not the copy engines",
     "ROCm documentation: environment variables"),
    ("AMD_LOG_LEVEL", _at_least(3), "HIP logs every call", "HIP documentation: logging"),
    ("MIOPEN_ENABLE_LOGGING", _on, "MIOpen logs every call", "MIOpen documentation: logging"),
    ("MIOPEN_CHECK_NUMERICS", _on, "MIOpen searches every tensor for NaN", "MIOpen documentation"),
    ("MIOPEN_DISABLE_CACHE", _on, "every run compiles the kernels again", "MIOpen documentation: cache"),
    ("TORCH_DISTRIBUTED_DEBUG", lambda value: value.upper() == "DETAIL", "a second collective checks each collective",
     "PyTorch documentation: distributed, debugging"),
    ("TORCH_NCCL_BLOCKING_WAIT", _on, "the program waits for each collective", "PyTorch documentation: NCCL variables"),
    ("NCCL_DEBUG", lambda value: value.upper() == "TRACE", "NCCL writes a line for every call",
     "NCCL documentation: environment variables"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", _on, "the driver allocates each tensor", "PyTorch documentation: CUDA"),
    ("PYTHONMALLOC", lambda value: "debug" in value, "Python checks each allocation", "Python: -X dev"),
    ("PYTHONTRACEMALLOC", _on, "Python traces each allocation", "Python documentation: tracemalloc"),
    ("CUDA_CACHE_DISABLE", _on, "every run compiles the kernels again", "CUDA programming guide"),
)  # fmt: skip
SHARED_FILE = "NCCL_DEBUG_FILE"


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report debugging switches, and a log file that all ranks write."""
    variables = survey.settings.variables
    for name, is_slow, effect, source in SLOWS:
        if name in variables and is_slow(variables[name]):
            yield Finding(
                severity="warning", message=f"{name}={variables[name]}: {effect}",
                evidence="it may be left from debugging",
                remedy=f"unset {name}", source=source,
            )  # fmt: skip
    path = variables.get(SHARED_FILE, "")
    if path and "%p" not in path and wanted.ranks_on(survey) * wanted.num_nodes > 1:
        yield Finding(
            severity="warning", message=f"{SHARED_FILE}: all ranks write into one file", evidence=f"{path}",
            remedy=f"export {SHARED_FILE}={path}.%h.%p", source="NCCL documentation: environment variables",
        )  # fmt: skip
