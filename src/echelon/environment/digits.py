"""Parse whole numbers as people and launchers write them; Python accepts more characters as digits and numbers."""

# "²".isdigit() is true, but int() refuses it; int() also refuses 5,000 digits, and accepts other alphabets' digits.
MOST_DIGITS = 15


def is_number(text: str) -> bool:
    """Say whether a text is a whole number of reasonable length in the digits 0 to 9."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def whole(text: str, otherwise: int = 0) -> int:
    """Return a whole number, or `otherwise` for any other text."""
    return int(text) if is_number(text) else otherwise
