"""Carry out a plan: run directory, agents, supervisor, console."""
