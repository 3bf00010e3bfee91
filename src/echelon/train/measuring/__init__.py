"""Measure a training without a change to its script: its waits for data, passes backward, communication, and more."""
