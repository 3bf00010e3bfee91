"""What `echelon run --explain-hooks` starts: two ranks install all patches, never meet, and print the table."""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import UsageError
from ..orders.scale import ScaleOptions
from ..pytorch import targets
from . import patches

NUM_RANKS = 2
ALL = "all ranks"
_OF = ("rank 0 alone", "all ranks but rank 0")
EXPLICIT, MEASURED = "explicit", "measured"
"""Scripts that no options scale: they call echelon.start(), or are only measured."""


def main(argv: list[str]) -> int:
    """Write a table as JSON: for the options of argv[0], for a script that calls echelon.start(), or for any other."""
    is_scaled = argv[0] != MEASURED
    try:
        targets.check(*["scale"] * is_scaled)
        if is_scaled:
            from . import start  # noqa: F401  # once, and not in each rank
    except targets.UnknownPyTorch as error:
        table: object = {"message": error.message, "hint": error.hint}
    else:
        table = _table([_answer_of_rank(partial(_install, argv[0]), rank) for rank in range(NUM_RANKS)])
    sys.stdout.write(json.dumps(table) + "\n")
    return 0


def _table(answers: list[Any]) -> object:
    """Return the rows of all ranks, each with its ranks; or the error of one, as {"message", "hint"}."""
    errors = [answer for answer in answers if isinstance(answer, dict)]
    if errors:
        return errors[0]
    first, other = answers
    table = [{**row, "ranks": ALL if row in other else _OF[0]} for row in first]
    return table + [{**row, "ranks": _OF[1]} for row in other if row not in first]


def _answer_of_rank(install: Callable[[], object], rank: int) -> object:
    """Return what a rank tells, which is a fork of this process as ranks are forks of the warm process."""
    pipe, writing = os.pipe()
    if not os.fork():
        try:
            os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(NUM_RANKS), LOCAL_WORLD_SIZE="1")
            answer = _installed(install)
            with os.fdopen(writing, "w") as file:
                json.dump(answer, file)
            os._exit(0)
        finally:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    os.close(writing)
    with os.fdopen(pipe) as file:
        text = file.read()
    os.wait()
    return json.loads(text) if text else {"message": "", "hint": ""}


def _install(what: str) -> None:
    from .measuring import install as measuring

    measuring.install((), lambda _: None, lambda _: None)
    if what == MEASURED:
        return
    from . import start

    if what == EXPLICIT:
        start.prepare()
    else:
        start.start_hooked(ScaleOptions.from_json(what))


def _installed(install: Callable[[], object]) -> object:
    try:
        install()
    except UsageError as error:
        return {"message": error.message, "hint": error.hint}
    return [row._asdict() for row in patches.rows()]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
