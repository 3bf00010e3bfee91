"""SystemExit from a function runs the `finally` blocks and the atexit functions on its way."""

import atexit


def leave() -> None:
    try:
        raise SystemExit(9)
    finally:
        print("finally")


atexit.register(print, "atexit")
leave()
