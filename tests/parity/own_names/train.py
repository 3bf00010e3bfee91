"""A module beside the script is found before one of the standard library of the same name."""

import select
import signal

print(select.NAME, signal.NAME)
