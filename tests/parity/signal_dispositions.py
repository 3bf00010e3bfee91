"""Every signal has the disposition that plain Python gives it, for Python and for the kernel."""

import signal

for number in sorted(signal.valid_signals()):
    action = signal.getsignal(number)
    print(int(number), getattr(action, "name", None) or getattr(action, "__name__", action))
print(signal.set_wakeup_fd(-1))
with open("/proc/self/status") as status:
    print([line.split() for line in status if line.startswith(("SigBlk", "SigIgn", "SigCgt"))])
