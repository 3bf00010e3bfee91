"""Say what the real program says when it gives up."""


class Fatal(Exception):
    """The container cannot be started; the real program prints FATAL and ends with 255."""


class Usage(Exception):
    """The command line is wrong; the real program ends with 1."""
