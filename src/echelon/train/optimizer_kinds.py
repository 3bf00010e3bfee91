"""Which optimizers can step with a part of each weight, and which give the same bits for every partition of weights."""

from typing import Any, List, Optional

from torch import optim

ELEMENTWISE = (
    optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam,
    optim.RMSprop, optim.Rprop, optim.SGD,
)  # fmt: skip
"""Optimizers that compute each element by itself."""
_NEED_WHOLE = {"LBFGS": "all weights as one vector", "Adafactor": "means over rows and columns of whole weights"}


def why_needs_whole(kind: Any) -> Optional[str]:
    """Return why an optimizer needs more than a part of each weight; None if a part suffices."""
    names = [name for name in _names(kind) if name in _NEED_WHOLE]
    return "%s computes with %s" % (names[0], _NEED_WHOLE[names[0]]) if names else None


def needs_all_weights(kind: Any) -> bool:
    """Say whether an optimizer needs all weights at once, each of them whole."""
    return "LBFGS" in _names(kind)


def _names(kind: Any) -> List[str]:
    """Return the names of a class and its bases, because other libraries have an Adafactor too."""
    return [base.__name__ for base in getattr(kind, "__mro__", ())]


def why_bits_differ(kind: Any, *, is_fused: bool) -> Optional[str]:
    """Return why the bits of a step may depend on the partition of weights; None if they do not."""
    name = getattr(kind, "__name__", kind)
    if kind not in ELEMENTWISE:
        known = ", ".join(sorted(one.__name__ for one in ELEMENTWISE))
        return (
            "%s may mix the elements of a weight; an exact run that shards weights needs an optimizer that "
            "computes each element by itself: %s" % (name, known)
        )
    if is_fused:  # seen with SGD, momentum and decay on a CPU
        return (
            "%s(fused=True) rounds the last elements of a shard differently, and this exact run shards weights" % name
        )
    return None
