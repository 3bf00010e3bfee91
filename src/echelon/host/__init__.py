"""The one door to processes, files and the clock; its recorded fake ships too."""

from echelon.host.host import Finished, Host, ToolMissing, ToolSlow
from echelon.host.recorded import RecordedHost

__all__ = ["Finished", "Host", "RecordedHost", "ToolMissing", "ToolSlow"]
