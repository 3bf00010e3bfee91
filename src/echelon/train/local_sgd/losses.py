"""Mean losses over classes of this rank's own samples: the number of all ranks' targets would need a message a step."""

import inspect
from functools import lru_cache
from typing import Any, Optional

from .. import patches
from ..global_tensors import losses
from ..global_tensors.tensors import Args, GlobalTensor, Kwargs, Partial, Sharded

_NAMES = ("cross_entropy", "nll_loss")
_LEAST = 1e-6  # the divisor of a sum over no targets, which is 0


def install() -> None:
    """Put this module's rule before the other rules of global tensors."""
    usual = GlobalTensor.rule

    def rule(func: Any, args: Args, kwargs: Kwargs) -> Any:
        own = _own_mean(func, args, kwargs) if getattr(func, "__name__", "") in _NAMES else None
        return usual(func, args, kwargs) if own is None else own

    patches.replace(
        GlobalTensor, "rule", staticmethod(rule), why="A mean over classes is that of the samples of this rank."
    )


@lru_cache(maxsize=None)
def _signature(func: Any) -> inspect.Signature:
    return inspect.signature(func)


def _own_mean(func: Any, args: Args, kwargs: Kwargs) -> Optional[Partial]:
    """Return the mean over the targets of this rank, weighted by its share of the batch; None for any other loss."""
    values = _signature(func).bind(*args, **kwargs)
    values.apply_defaults()
    arguments = values.arguments
    rows = _rows_in_common(arguments["input"], arguments["target"])
    is_mean = arguments["reduction"] == "mean" and arguments["size_average"] is None and arguments["reduce"] is None
    if rows is None or not is_mean or isinstance(arguments["weight"], GlobalTensor):
        return None
    own = rows.rows[rows.world.rank]
    count = losses.count_of_targets(
        arguments["target"].local[:own], arguments["weight"], arguments["ignore_index"], arguments["input"].local
    )
    arguments.update(input=arguments["input"].local, target=arguments["target"].local, reduction="sum")
    fraction = own / sum(rows.rows)
    loss = func(**arguments) * fraction
    return Partial(loss / count.clamp(min=_LEAST).to(loss.dtype), rows.world, fraction)


def _rows_in_common(scores: Any, target: Any) -> Optional[Sharded]:
    """Return the scores if they and the targets have the same rows, and the targets are class indices."""
    if not isinstance(scores, Sharded) or not isinstance(target, Sharded) or target.is_floating_point():
        return None
    is_lined_up = scores.rows == target.rows and not scores.dim_of_rows and not target.dim_of_rows
    return scores if is_lined_up and scores.size(0) > 1 else None
