"""Functions registered with atexit run in reverse order, after non-daemon threads have ended."""

import atexit
import threading
import time


def work() -> None:
    time.sleep(0.2)
    print("thread ends")


for name in ("first", "second", "third"):
    atexit.register(print, name)
threading.Thread(target=work).start()
print("script ends")
