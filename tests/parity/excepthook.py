"""A script's own `sys.excepthook` sees the exception, and the exit code stays 1."""

import sys


def hook(kind: type, error: BaseException, trace: object) -> None:
    print("hook:", kind.__name__, error, trace.tb_frame.f_code.co_filename, trace.tb_lineno, file=sys.stderr)


sys.excepthook = hook
raise ValueError("for the hook")
