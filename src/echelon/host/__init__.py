"""Access to processes, files and the clock; tests use a recorded host instead."""

from echelon.host.host import Finished, Host, ToolMissing, ToolSlow
from echelon.host.recorded import RecordedHost

__all__ = ["Finished", "Host", "RecordedHost", "ToolMissing", "ToolSlow"]
