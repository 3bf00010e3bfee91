"""Whole numbers as people and launchers write them: what Python takes for a digit, and for a number, is more."""

# "²".isdigit() is true, and int() refuses it; int() also refuses 5,000 digits, and takes other alphabets' digits.
MOST_DIGITS = 15


def is_number(text: str) -> bool:
    """Tell whether a text is a whole number in the digits 0 to 9, and one that anybody counts by."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def whole(text: str, otherwise: int = 0) -> int:
    """Return a whole number; another one for a text that is none."""
    return int(text) if is_number(text) else otherwise
