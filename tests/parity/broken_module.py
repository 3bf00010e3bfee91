"""Parse, but do not compile."""

return 1  # noqa: F706
