"""Compiler flags of other modules do not reach the script: its annotations are evaluated."""


def size(count: 1 + 1) -> None:  # an expression on purpose
    return None


print(size.__annotations__)
