"""An alarm interrupts a sleeping script."""

import signal
import time


def ring(number: int, frame: object) -> None:
    raise TimeoutError(signal.Signals(number).name)


signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.1)
try:
    time.sleep(5)
except TimeoutError as error:
    print("woken by", error)
