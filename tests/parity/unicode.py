"""Text that is not ASCII is printed, whatever the encoding of the terminal."""

import locale
import sys

print("Grüße, 世界, \N{ROCKET}")
print(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors(), sys.getdefaultencoding())
print(locale.getpreferredencoding(False), locale.getlocale(), locale.setlocale(locale.LC_ALL))
