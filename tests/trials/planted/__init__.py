"""Real mistakes of distributed training, each with the thread it comes from, and the repaired script beside it."""
