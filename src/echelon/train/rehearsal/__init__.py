"""The part of a rehearsal that is inside of ranks: it lets a fault happen, and records the course of the run."""
