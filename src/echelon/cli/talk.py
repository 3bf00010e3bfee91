"""What commands say to the person, beside their data."""

import sys


def say(text: str) -> None:
    """Talk to the person: on standard error."""
    print(f"echelon: {text}", file=sys.stderr)
