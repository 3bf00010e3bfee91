"""Have the name of a module of the standard library."""

NAME = "our textwrap"
