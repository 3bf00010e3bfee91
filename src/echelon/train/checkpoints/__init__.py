"""Checkpoints of a script that distributes itself: it names what to save, and loops over its epochs and batches."""
