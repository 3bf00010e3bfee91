"""Have the name of a built module of the standard library."""

NAME = "our select"
