"""The errors of this room: each carries the repair that stands below its message.

WrongEnvironmentError
 ├─ HostlistError      a list of nodes or task counts that nobody can read
 ├─ SurroundingError   the place of this process among the ranks cannot be known
 └─ DeviceError        the device that a rank asks for is not there
"""

_SHOWN = 200  # characters of a list that a message shows


class WrongEnvironmentError(ValueError):
    """A problem of the environment, with its repair."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class HostlistError(WrongEnvironmentError):
    """A list of hosts or counts that cannot be read, with the position of the mistake."""

    def __init__(self, text: str, position: int, reason: str) -> None:
        shown = repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}… ({len(text)} characters)"
        super().__init__(
            f"{shown} is not a Slurm list: {reason} at position {position}",
            "a list looks like node[1-4,7],login1; task counts look like 4(x2),8",
        )
        self.text = text
        self.position = position


class SurroundingError(WrongEnvironmentError):
    """Variables of a launcher that are missing or disagree."""


class DeviceError(WrongEnvironmentError):
    """A device that was asked for and does not exist, with the devices that do."""
