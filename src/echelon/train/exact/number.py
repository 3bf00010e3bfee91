"""The valid numbers of virtual shards, V in `echelon.start(exact=V)`."""

from ..scaling_error import ScalingError


def check(num_shards: int, num_ranks: int) -> None:
    """Refuse a number that is no power of two, or that is no multiple of the number of ranks."""
    if not num_shards:
        return
    is_number = isinstance(num_shards, int) and not isinstance(num_shards, bool)
    if not is_number or num_shards < 2 or num_shards & (num_shards - 1):
        nearest = 1 << max(1, num_shards.bit_length() - 1) if is_number and num_shards > 0 else 8
        raise ScalingError(
            "exact is %r: a binary tree adds up the virtual shards, so their number must be a power of two, at "
            "least 2" % (num_shards,),
            "echelon.start(exact=%d), or exact=%d" % (nearest, 2 * nearest),
        )
    if num_shards % num_ranks:
        valid = [str(1 << power) for power in range(num_shards.bit_length())]
        raise ScalingError(
            "exact=%d needs %s or %s ranks, but the run has %d"
            % (num_shards, ", ".join(valid[:-1]), valid[-1], num_ranks),
            "echelon run -n %d …" % (1 << (min(num_ranks, num_shards).bit_length() - 1)),
        )


def refuse_other(asked: int, begun: int) -> None:
    """Refuse a number that differs from the number at the start of the run."""
    if asked and asked != begun:
        raise ScalingError(
            "echelon run started with exact=%d, but the script called echelon.start(exact=%d) later" % (begun, asked),
            "give the number in the first call: echelon.start(exact=%d)" % asked,
        )
