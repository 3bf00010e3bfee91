"""`input()` at the end of standard input raises EOFError, after writing its prompt."""

input("name? ")
