"""All ranks continue from the same checkpoint, or none does."""

from ...checkpoint import exchange
from ..scaling_error import ScalingError


def any_rank(_: str, *, is_so: bool) -> bool:
    """Say whether it is so on any rank; the ranks have met, and need no name for the question."""
    return b"1" in exchange.gather(b"%d" % is_so)


def refuse_other_steps(step: int) -> None:
    """Stop if the ranks have found checkpoints of different steps, as a slow file system may let them; -1: none."""
    steps = [int(content) for content in exchange.gather(b"%d" % step)]
    if len(set(steps)) > 1:
        raise ScalingError(
            "rank 0 has found the checkpoint of step %d, and another rank that of step %d"
            % (steps[0], next(other for other in steps if other != steps[0])),
            "start the run again when the file system shows all ranks the same files",
        )
