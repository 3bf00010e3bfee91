"""The script is the module `__main__`, with the attributes and nothing else that Python gives it."""

NAMES_AT_START = sorted(globals())

import sys  # noqa: E402

print(NAMES_AT_START)
print(__name__, __file__, __spec__ and __spec__.name, repr(__package__), __cached__)
print(type(__loader__).__name__, __loader__.name, __loader__.path)
print(type(__builtins__).__name__, __builtins__.__name__)
print(__doc__)
print(vars(sys.modules["__main__"]) is globals())
