"""Estimate, before a job runs, what a training takes of a device and how its speed grows with more devices."""
