"""Train a single-device script on several devices. This room runs inside of ranks: torch and the standard library.

`run = echelon.start()` is the explicit form; `echelon run --scale data` calls it with hooks, without a change to
the script.
"""
