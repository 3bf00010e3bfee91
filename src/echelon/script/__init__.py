"""Find and read a script on the submitting side; it is never run."""
