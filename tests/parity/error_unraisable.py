"""An exception in `__del__` goes to the script's own `sys.unraisablehook` and is then ignored."""

import sys


class Resource:
    def __del__(self) -> None:
        raise ValueError("in __del__")


sys.unraisablehook = lambda report: print(report.exc_type.__name__, report.exc_value, file=sys.stderr)
resource = Resource()
del resource
print("script ends")
