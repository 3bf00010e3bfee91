"""Printing text with a lone surrogate ends as under plain Python, by the encoding and its error handling."""

print("caf\udce9")
