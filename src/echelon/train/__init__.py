"""Train on several devices what was written for one. This room runs inside of ranks: torch and the standard library.

`run = echelon.start()` is the explicit form; `echelon run --scale data` calls the same by hooks, without a change to
the script.
"""
