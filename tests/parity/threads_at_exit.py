"""A daemon thread does not hold the script up at its end; another thread does."""

import threading
import time


def work() -> None:
    time.sleep(0.2)
    print("worked to the end")


threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
threading.Thread(target=work).start()
print("script ends")
