"""What `echelon lint --fix` and `--diff` do with the repairs: show them, write them, count them."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from echelon.cli.talk import say
from echelon.errors import UsageError

if TYPE_CHECKING:
    from echelon.lint.repair import Repaired
    from echelon.lint.run import Linted


def make(
    sources: Mapping[str, bytes], look: Callable[[Mapping[str, bytes]], Linted], *, writes: bool, shows: bool
) -> tuple[Linted, bool]:
    """Show what the repairs change, and write it; return what is left to say, and whether something waits for --fix.

    `shows` puts the difference on standard output; otherwise other data go there, and it is talk.
    """
    from echelon.lint.repair import difference, repair

    repaired = repair(sources, look)
    changed = [path for path in sources if repaired.sources[path] != sources[path]]
    text = difference(sources, repaired.sources)
    stream = sys.stdout if shows else sys.stderr
    stream.write(text)
    stream.flush()  # the difference first, whatever happens to the files
    if writes:
        for path in changed:
            write(path, repaired.sources[path])
        if changed and shows:
            print()
    _say(repaired, writes=writes)
    return repaired.left, bool(changed) and not writes


def _say(repaired: Repaired, *, writes: bool) -> None:
    counts = Counter(finding.code for finding in repaired.findings)
    what = ", ".join(f"{code}{f' × {count}' if count > 1 else ''}" for code, count in sorted(counts.items()))
    some = f"{len(repaired.findings)} repair{'s' if len(repaired.findings) != 1 else ''}"
    if not counts:
        say("no repair is certain")
    elif writes:
        say(f"{some}: {what}")
    else:
        say(f"{some} for --fix: {what}")


def write(path: str, source: bytes) -> None:
    """Replace a file in one step, with its mode; of a link, what it leads to."""
    target = os.path.realpath(path)
    fresh = f"{target}.echelon-{os.getpid()}"
    try:
        with open(target, "r+b"):
            pass  # what may not be written is not replaced either
        try:
            with open(fresh, "xb") as file:
                file.write(source)
            shutil.copymode(target, fresh)
            os.replace(fresh, target)
        finally:
            if os.path.exists(fresh):
                os.unlink(fresh)
    except OSError as error:
        raise UsageError(
            f"echelon cannot write {path}: {error.strerror}", hint=f"echelon lint --diff {path} > repairs.diff"
        ) from None
