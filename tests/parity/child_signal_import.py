"""What an installed library does about SIGCHLD when it is imported stays as it made it."""

import signal

import child_handler

print(signal.getsignal(signal.SIGCHLD) is child_handler.note)
