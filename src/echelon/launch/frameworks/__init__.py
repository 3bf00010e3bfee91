"""The frameworks in which people train: which are installed, and which mistakes of their runs are refused."""
