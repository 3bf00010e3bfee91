"""What an installed library writes and warns of when it is imported is seen."""

import talkative  # noqa: F401

print("script")
