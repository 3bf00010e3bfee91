"""Find known variables whose names resemble an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Collection

LIKENESS = 0.87
"""The least likeness of difflib for two whole names."""
LIKENESS_OF_WORDS = 0.6
PLACES = ("PATH", "DIR", "DIRECTORY", "FOLDER", "HOME")


def meant(name: str, known: Collection[str]) -> list[str]:
    """Return the names that may have been meant, nearest first.

    >>> meant("MIOPEN_CUSTOM_CACHE_PATH", ["MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_DISABLE_CACHE"])
    ['MIOPEN_CUSTOM_CACHE_DIR']
    """
    near = [*_other_place(name, known), *difflib.get_close_matches(name, known, n=2, cutoff=LIKENESS)]
    return [each for each in dict.fromkeys(near) if _is_slip(name, each)]


def _other_place(name: str, known: Collection[str]) -> list[str]:
    """Return the known name that has DIR instead of PATH."""
    stem, _, last = name.rpartition("_")
    return [f"{stem}_{word}" for word in PLACES if last in PLACES and f"{stem}_{word}" in known]


def _is_slip(name: str, known: str) -> bool:
    """Say whether two names differ by a typing error; variables of one family differ by whole words or numbers."""
    words, others = name.split("_"), known.split("_")
    if words[:-1] == others[:-1] and words[-1] in PLACES and others[-1] in PLACES:
        return True
    if len(words) != len(others):
        return abs(len(words) - len(others)) == 1 and not _has_one_more(words, others)
    different = [(one, other) for one, other in zip(words, others, strict=True) if one != other]
    return len(different) == 1 and difflib.SequenceMatcher(None, *different[0]).ratio() >= LIKENESS_OF_WORDS


def _has_one_more(words: list[str], others: list[str]) -> bool:
    """Say whether one name has a whole word more: NCCL_NET and NCCL_NET_PLUGIN."""
    shorter, longer = sorted((words, others), key=len)
    return any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer)))
