"""The frameworks in which people train: what is installed, and what a run of theirs must not get wrong."""
