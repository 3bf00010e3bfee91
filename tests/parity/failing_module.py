"""Fail when imported."""

raise LookupError("raised while importing")
