"""The severities of a finding."""

SEVERITIES = ("error", "warning", "note")
"""Worst first: fails or trains something else; costs time or money, or fails elsewhere; good to know."""
