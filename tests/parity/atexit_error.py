"""An exception in an atexit function is printed and ignored, and the others still run."""

import atexit


class Callback:
    """Stand for a function whose printed name has no address in it."""

    def __call__(self) -> None:
        raise ValueError("in atexit")

    def __repr__(self) -> str:
        return "<callback>"


atexit.register(print, "registered first, run last")
atexit.register(Callback())
