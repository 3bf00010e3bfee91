"""What the launcher asks of ranks: values that the command line chooses, and that each rank reads as JSON."""
