"""`echelon prove`, whose runs are forks of this process: for scripts that distribute themselves."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.planted.warm import WarmHost

import echelon.host
from echelon.cli import main

if __name__ == "__main__":
    echelon.host.Host = WarmHost  # type: ignore[misc]
    sys.exit(main(["prove", *sys.argv[1:]]))
