"""The temporary folder is the environment's, and files in it vanish at the end."""

import os
import tempfile

print(tempfile.gettempdir())
with tempfile.TemporaryDirectory() as folder:
    print(os.path.isdir(folder))
print(os.path.exists(folder))
