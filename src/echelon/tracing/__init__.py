"""Trace a training without computing it: which bytes of a device it would take, and when."""
