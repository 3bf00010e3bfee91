"""Carry out a plan: run directory, agents, supervisor, console."""

import sys

import echelon

# the function for people has the name of this room: echelon.launch(function, ranks=4)
sys.modules[__name__].__class__ = echelon.CallableRoom
