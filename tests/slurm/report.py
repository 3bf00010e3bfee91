"""Every rank writes its environment and place into a file of the folder that is the first argument."""

import json
import os
import socket
import sys
from pathlib import Path

fields = {
    "environ": dict(os.environ),
    "argv": [argument.encode("utf-8", "surrogateescape").hex() for argument in sys.argv[1:]],
    "cores": len(os.sched_getaffinity(0)),
    "master": socket.gethostbyname(os.environ["MASTER_ADDR"]),
}
path = Path(sys.argv[1]) / f"{os.environ['RANK']}.json"
path.with_suffix(".part").write_text(json.dumps(fields))
path.with_suffix(".part").rename(path)
