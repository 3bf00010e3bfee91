"""`python -m echelon`."""

import sys

from echelon.cli import main

if __name__ == "__main__":
    sys.exit(main())
