"""An exception in a thread is printed with the thread's name, and the script goes on."""

import threading


def work() -> None:
    raise ValueError("in a thread")


thread = threading.Thread(target=work, name="loader")
thread.start()
thread.join()
print("script ends")
