"""`import __main__` gives the running script, which does not run a second time."""

import sys

import __main__

print("running")
answer = 42
print(__main__.answer, __main__ is sys.modules["__main__"], __main__.__file__ == __file__)
