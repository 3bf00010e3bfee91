"""Parse and write sets of hardware threads in the formats of the kernel and batch systems."""

from typing import Iterable, List, Set, Tuple

from ..environment import digits

MOST_CPUS = 1 << 16  # Linux has at most 8192; a longer list is invalid


def parse_cpu_list(text: str) -> Tuple[int, ...]:
    """Parse a list such as 0-3,8; ignore parts that are no number or range."""
    numbers: Set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if _is_number(low) and (not high or _is_number(high)):
            numbers.update(range(int(low), int(high or low) + 1))
    return tuple(sorted(numbers))


def _is_number(word: str) -> bool:
    return digits.whole(word, MOST_CPUS) < MOST_CPUS


def cpu_list(cpus: Iterable[int]) -> str:
    """Write hardware threads as a list: 49-55,57."""
    parts: List[str] = []
    low = high = -2
    for cpu in [*sorted(set(cpus)), -1]:
        if cpu == high + 1:
            high = cpu
            continue
        if low >= 0:
            parts.append(str(low) if low == high else f"{low}-{high}")
        low = high = cpu
    return ",".join(parts)


def mask(cpus: Iterable[int]) -> str:
    """Write hardware threads as a hexadecimal mask, whole 64-bit words: 0x00fe000000000000."""
    bits = 0
    for cpu in cpus:
        if cpu >= 0:
            bits |= 1 << cpu
    words = max(1, -(-bits.bit_length() // 64))
    return f"0x{bits:0{16 * words}x}"
