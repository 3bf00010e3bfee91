"""Name what can go wrong with the private cluster."""


class ClusterError(Exception):
    """The private cluster could not be started, or a command in it failed."""
