"""Read the dumps of PyTorch's flight recorder: the last collective that a rank has begun and not ended."""

import os
import stat
from typing import Any, Dict, List, Mapping

from . import plain_values

VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# what PyTorch writes without these variables: since 2.9, and before
DEFAULTS = ("~/.cache/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_")
LARGEST_BYTES = 64 << 20


def pending(rank: int, environ: Mapping[str, str], since: float) -> str:
    """Return "all_reduce number 812 of [[1000]]" from a rank's dump; empty without a dump from after `since`."""
    named = [environ[name] for name in VARIABLES if environ.get(name)]
    for prefix in named or DEFAULTS:
        entries = _entries("%s%d" % (os.path.expanduser(prefix), rank), since)
        open_entries = [entry for entry in entries if not entry.get("retired")]
        if open_entries:
            return _words(open_entries[0])
    return ""


def _entries(path: str, since: float) -> List[Dict[str, Any]]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or status.st_mtime < since or status.st_size > LARGEST_BYTES:
            return []
        try:
            dump = plain_values.read(file.read())
            return [entry for entry in dump["entries"] if isinstance(entry, dict)]
        except (ValueError, LookupError, TypeError, AttributeError):  # torn, or not PyTorch's
            return []


def _words(entry: Mapping[str, Any]) -> str:
    name = str(entry.get("profiling_name", "?")).rpartition(":")[2]
    return "%s number %s of %s" % (name, entry.get("collective_seq_id", "?"), entry.get("input_sizes", "?"))
