"""Which rank this process is: read launchers' variables, and set every framework's."""
