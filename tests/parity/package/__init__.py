"""A small package that is run with -m."""

print("package", __name__, __spec__.name, flush=True)
