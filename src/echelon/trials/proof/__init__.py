"""Compares the records of two trainings and names the cause of a difference. Only `tensors.py` imports torch."""
