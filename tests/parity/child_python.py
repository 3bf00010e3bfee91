"""A child started with `sys.executable` is a plain Python of the same kind."""

import subprocess
import sys

code = "import sys; print(sys.argv, sys.prefix, sys.flags.isolated); sys.exit(4)"
child = subprocess.run([sys.executable, "-c", code, "a b"], capture_output=True, text=True)
print(child.returncode, child.stdout, child.stderr)
