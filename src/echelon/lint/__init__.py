"""Mistakes in batch scripts, training scripts and their settings, found by reading them; nothing of them is run."""
