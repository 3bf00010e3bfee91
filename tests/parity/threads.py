"""The script runs in the only thread, which is the main one."""

import os
import threading

print(threading.current_thread() is threading.main_thread(), threading.main_thread().name)
print(threading.active_count(), [thread.name for thread in threading.enumerate()])
print(threading.main_thread().native_id == os.getpid(), len(os.listdir("/proc/self/task")))
