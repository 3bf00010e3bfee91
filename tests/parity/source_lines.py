"""The script's own source can be read back by inspect, and linecache."""

import inspect


def named() -> int:
    return 42


print(inspect.getsource(named))
print(inspect.getfile(named), named.__code__.co_filename, named.__module__)
