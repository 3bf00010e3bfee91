"""Read a small file of sysfs or procfs again and again."""

import os
from typing import Optional

from ....topology import files

_MOST_BYTES = 4096


class KeptFile:
    """A file that stays open: a sample is one call of the kernel. A file that cannot be read is tried again."""

    def __init__(self, path: str, most_bytes: int = _MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._descriptor = -1

    def read(self) -> Optional[bytes]:
        """Return the content; None if the file is missing, empty, or its driver refuses."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            return os.pread(self._descriptor, self._most_bytes, 0) or None
        except OSError:
            self.close()
            return None

    def number(self) -> Optional[int]:
        """Return the number in the file; None if there is none, or if it is negative."""
        content = self.read()
        if content is None:
            return None
        # 1234   or, in Slingshot's counters, 1234@1700000000.000000000
        number = files.number(content.partition(b"@")[0].decode("ascii", "replace").strip())
        return number if number >= 0 else None

    def close(self) -> None:
        """Close the file; the next reading opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
