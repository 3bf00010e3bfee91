"""A single line of two megabytes arrives whole."""

print("x" * 2_000_000)
