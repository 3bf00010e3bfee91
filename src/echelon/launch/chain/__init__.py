"""A chain of jobs: one training, of which each job does a part, and the next one goes on."""
