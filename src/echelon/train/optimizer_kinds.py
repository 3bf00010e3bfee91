"""Which optimizers step right with a part of each weight, and of which it is known that their bits are the same."""

from typing import Any, List, Optional

from torch import optim

ELEMENTWISE = (
    optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam,
    optim.RMSprop, optim.Rprop, optim.SGD,
)  # fmt: skip
"""They compute each element by itself."""
_NEED_WHOLE = {"LBFGS": "all weights as one vector", "Adafactor": "means over rows and columns of whole weights"}


def needed_whole(kind: Any) -> Optional[str]:
    """Say what a kind of optimizer computes with that is more than a part of each weight."""
    found = [name for name in _names(kind) if name in _NEED_WHOLE]
    return "%s computes with %s" % (found[0], _NEED_WHOLE[found[0]]) if found else None


def needs_all_weights(kind: Any) -> bool:
    """Say whether a kind of optimizer must have all weights at once, each of them whole."""
    return "LBFGS" in _names(kind)


def _names(kind: Any) -> List[str]:
    """Return the names of a class and its bases, for others than PyTorch have an Adafactor too."""
    return [base.__name__ for base in getattr(kind, "__mro__", ())]


def may_mix_elements(kind: Any) -> Optional[str]:
    """Say so of a kind of optimizer that may compute an element from others, whose bits then depend on the cut."""
    if kind in ELEMENTWISE:
        return None
    known = ", ".join(sorted(one.__name__ for one in ELEMENTWISE))
    return (
        "%s may mix the elements of a weight, and an exact run whose weights are cut needs an optimizer that computes "
        "each by itself: %s" % (getattr(kind, "__name__", kind), known)
    )
