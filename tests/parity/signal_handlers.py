"""Handlers that the script installs run for the signals that a batch system sends."""

import signal


def note(number: int, frame: object) -> None:
    print(signal.Signals(number).name, frame.f_code.co_name)


for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT, signal.SIGCONT):
    print(getattr(signal.signal(number, note), "__name__", "default"))
    signal.raise_signal(number)
print("script ends")
