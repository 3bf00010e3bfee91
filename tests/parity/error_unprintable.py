"""An exception whose text cannot be made still ends the script as in plain Python."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


raise Unprintable
