"""Access to processes, files and the clock; tests use a recorded host instead."""

from echelon.host.host import Finished, Host, RecordedHost, ToolMissing, ToolSlow

__all__ = ["Finished", "Host", "RecordedHost", "ToolMissing", "ToolSlow"]
