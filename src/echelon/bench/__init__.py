"""Measure how a script scales, how fast ranks exchange data, and how long a start takes; users start the same runs."""
