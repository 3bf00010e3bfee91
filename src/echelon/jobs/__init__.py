"""Submit a job, follow it, and let a chain of jobs do one training."""
