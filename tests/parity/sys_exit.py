"""`sys.exit` ends the process with the exit code and the words of plain Python."""

import sys

CHOICES = {
    "nothing": None,
    "zero": 0,
    "three": 3,
    "negative": -1,
    "beyond-a-byte": 300,
    "beyond-an-int": 2**40,
    "beyond-a-long": 2**70,
    "true": True,
    "float": 2.5,
    "text": "the disk is full",
    "empty-text": "",
    "tuple": (1, 2),
    "bytes": b"bytes",
}
print("before")
sys.exit(CHOICES[sys.argv[1]])
