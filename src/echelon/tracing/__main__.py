"""`python -m echelon.tracing ORDER`: trace a script, once PyTorch has all that this takes from it."""

import json
import sys

from ..orders import codec
from ..orders.trace import TraceOrder
from ..pytorch import targets


def main(argv: list[str]) -> int:
    """Trace as argv[0] says; what PyTorch lacks is written in place of the log."""
    order = codec.decode(argv[0], "the order", TraceOrder)
    try:
        targets.check("scale", "trace")
    except targets.UnknownPyTorch as error:
        with open(order.out, "w", encoding="utf-8") as file:
            json.dump({"message": error.message, "hint": error.hint}, file)
        return error.exit_code
    from . import trace

    return trace.main(order)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
