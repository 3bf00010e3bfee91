"""A file left open at the end gives no word by default."""

left_open = open(__file__)  # noqa: SIM115
