"""An unhandled exception prints a traceback that starts at the script."""

print("before")
{}["missing"]
