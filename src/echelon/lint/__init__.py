"""Find mistakes in batch scripts, training scripts and their settings by reading them; nothing is run."""
