"""The standard streams have the encoding, error handling and buffering of plain Python."""

import sys

for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.fileno())
    print(stream.line_buffering, stream.write_through, type(stream.buffer).__name__)
