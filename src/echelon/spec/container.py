"""The command prefix that starts ranks inside a container."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The words before a command that run it inside a container, and the preparations outside."""

    image: str
    prefix: tuple[str, ...]
    modules: tuple[str, ...] = ()
    """Lines for a batch script: modules that set the site's binds."""
    convention: str = ""
    """The machine's convention in use, for the run's log."""
