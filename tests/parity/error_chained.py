"""A chained exception prints both tracebacks."""


def read() -> None:
    try:
        int("seven")
    except ValueError as error:
        raise RuntimeError("cannot read the count") from error


try:
    read()
except RuntimeError:
    raise KeyError("while handling")  # noqa: B904
