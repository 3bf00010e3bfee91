"""What a script says of itself: found and read on the submitting side, never run."""
