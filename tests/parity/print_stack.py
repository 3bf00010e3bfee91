"""`traceback.print_stack` starts at the script."""

import traceback


def inner() -> None:
    traceback.print_stack()


inner()
