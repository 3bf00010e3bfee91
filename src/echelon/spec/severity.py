"""How bad a finding is."""

SEVERITIES = ("error", "warning", "note")
"""Worst first: will fail or train something else; costs time or money, or fails elsewhere; worth knowing."""
