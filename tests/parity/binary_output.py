"""Bytes that are no text, carriage returns and null bytes arrive as they were written."""

import sys

sys.stdout.buffer.write(bytes(range(256)) + b"\r\n\r\x00\xff")
