"""SIGINT is a KeyboardInterrupt, which unhandled ends the process by the same signal."""

import signal


def wait() -> None:
    signal.raise_signal(signal.SIGINT)


wait()
print("never reached")
