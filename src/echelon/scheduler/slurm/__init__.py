"""Slurm's interface: the allocation, the step that starts agents, batch scripts, the state and end of jobs."""
