"""A script may catch KeyboardInterrupt and go on."""

import signal

try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt as interrupt:
    print(repr(interrupt))
print("goes on")
