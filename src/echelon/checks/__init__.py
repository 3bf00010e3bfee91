"""What is wrong with nodes before a run begins: pure functions from surveys to findings."""
