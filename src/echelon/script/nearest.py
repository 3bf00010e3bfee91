"""Suggest names that a user may have meant: files, modules, variables."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

MANY = 8  # names in a message
LISTED = 5000  # the most entries of a folder that are read; a dataset's folder may have millions


def one_of(words: str, names: Sequence[str]) -> str:
    """Return the words and the names; empty without names."""
    if not names:
        return ""
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return f"{words} {', '.join(names[:MANY])}{more}"


def nearest_files(folder: str, name: str, *, only_folders: bool = False) -> list[str]:
    """Return up to three Python files or subfolders with the nearest names."""
    wanted = [
        entry.name
        for entry in _listed(folder)
        if (entry.is_dir() if only_folders else entry.name.endswith(".py") or entry.is_dir())
    ]
    if name + ".py" in wanted:
        return [name + ".py"]
    return _close(name, [entry for entry in wanted if not entry.startswith((".", "__"))])


def nearest_modules(folders: Iterable[str], name: str) -> list[str]:
    """Return the modules in the folders with the nearest names; all modules for an empty name."""
    names = set()
    for folder in folders:
        for entry in _listed(folder):
            stem = entry.name.removesuffix(".py")
            if stem.isidentifier() and (stem != entry.name or os.path.isfile(entry.path + "/__init__.py")):
                names.add(stem)
    return _close(name, sorted(names)) if name else sorted(names)


def _listed(folder: str) -> list[os.DirEntry[str]]:
    python_entries: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                python_entries.append(entry)
                if len(python_entries) == LISTED:
                    break
    except OSError:
        return python_entries  # without suggestions, the message still says what is wrong
    return sorted(python_entries, key=lambda entry: entry.name)


def _close(name: str, names: Sequence[str]) -> list[str]:
    import difflib  # only an error pays these 6 ms

    lower = {entry.lower(): entry for entry in names}
    return [lower[match] for match in difflib.get_close_matches(name.lower(), list(lower), n=3, cutoff=0.6)]


LIKENESS = 0.87  # the least likeness of difflib for two whole names
LIKENESS_OF_WORDS = 0.6
PLACES = ("PATH", "DIR", "DIRECTORY", "FOLDER", "HOME")


def meant(name: str, known: Collection[str]) -> list[str]:
    """Return the names that may have been meant, nearest first.

    >>> meant("MIOPEN_CUSTOM_CACHE_PATH", ["MIOPEN_CUSTOM_CACHE_DIR", "MIOPEN_DISABLE_CACHE"])
    ['MIOPEN_CUSTOM_CACHE_DIR']
    """
    import difflib

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
    import difflib

    return len(different) == 1 and difflib.SequenceMatcher(None, *different[0]).ratio() >= LIKENESS_OF_WORDS


def _has_one_more(words: list[str], others: list[str]) -> bool:
    """Say whether one name has a whole word more: NCCL_NET and NCCL_NET_PLUGIN."""
    shorter, longer = sorted((words, others), key=len)
    return any(longer[:at] + longer[at + 1 :] == shorter for at in range(len(longer)))
