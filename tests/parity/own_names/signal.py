"""Have the name of a module of the standard library, as in signal processing."""

NAME = "our signal"
