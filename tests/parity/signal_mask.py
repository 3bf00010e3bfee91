"""No signal is blocked or pending, and no timer runs."""

import signal

print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.sigpending())
print(signal.getitimer(signal.ITIMER_REAL), signal.getitimer(signal.ITIMER_VIRTUAL))
print(signal.alarm(0))
