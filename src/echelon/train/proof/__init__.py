"""What a training does, written down step by step, and compared with another."""
