"""The interpreter's settings and hooks are untouched, and nothing of the launcher is imported."""

import sys

print(sys.flags)
print(sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix)
print(sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.pycache_prefix)
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.gettrace(), sys.getprofile())
print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__)
print(sys.unraisablehook is sys.__unraisablehook__, sys.breakpointhook is sys.__breakpointhook__)
print(sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__)
print([getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path])
print([module for module in sorted(sys.modules) if module.partition(".")[0] == "echelon"])
