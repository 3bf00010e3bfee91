"""What `echelon run --explain-hooks` starts: two ranks that install all patches, never meet, and tell the table."""

import json
import os
import sys
from functools import partial
from typing import Any, Callable, Dict, List

from ..scale_options import ScaleOptions
from . import patches, start

NUM_RANKS = 2
ALL = "all ranks"
_OF = ("rank 0 alone", "all ranks but rank 0")


def main(argv: List[str]) -> int:
    """Write a table as JSON: for the options of argv[0], or for a script that calls echelon.start()."""
    is_explicit = argv[0] == "explicit"
    install = start.prepare if is_explicit else partial(start.start_hooked, ScaleOptions.from_json(argv[0]))
    first, other = (_rows_of_rank(install, rank) for rank in range(NUM_RANKS))
    table = [{**row, "ranks": ALL if row in other else _OF[0]} for row in first]
    table += [{**row, "ranks": _OF[1]} for row in other if row not in first]
    sys.stdout.write(json.dumps(table) + "\n")
    return 0


def _rows_of_rank(install: Callable[[], Any], rank: int) -> List[Dict[str, Any]]:
    """Return the rows of a rank, which is a fork of this process as ranks are forks of the warm process."""
    pipe, writing = os.pipe()
    if not os.fork():
        try:
            os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(NUM_RANKS), LOCAL_WORLD_SIZE="1")
            install()
            with os.fdopen(writing, "w") as file:
                json.dump([row._asdict() for row in patches.rows()], file)
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(writing)
    with os.fdopen(pipe) as file:
        text = file.read()
    os.wait()
    return json.loads(text)  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
