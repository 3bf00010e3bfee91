"""How ranks get into a container."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """The words that stand before a command so that it runs inside, and what must happen outside before."""

    image: str
    prefix: tuple[str, ...]
    modules: tuple[str, ...] = ()
    """Lines for a batch script: modules that set the site's binds."""
    convention: str = ""
    """By which of the machine's conventions, for the run's log."""
