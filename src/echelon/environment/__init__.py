"""Which rank am I: what launchers say of a process, and what every framework wants to read."""
