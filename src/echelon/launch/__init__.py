"""Carry a plan out: run directory, agents, supervisor, what the user sees."""
