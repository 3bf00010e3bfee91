"""No variable that changes Python is added to the environment."""

import os

print(sorted(name for name in os.environ if name.startswith("PYTHON")))
print(os.environ.get("PATH") == os.environb[b"PATH"].decode(), os.environ.get("LD_PRELOAD"))
