"""Show, write and count the repairs of `echelon lint --fix` and `--diff`."""

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
    """Show and write the repairs; return the remaining findings, and whether --fix would repair something.

    With `shows` the diff goes to standard output; without it to standard error, beside other data.
    """
    from echelon.lint.repair import difference, repair

    repaired = repair(sources, look)
    changed = [path for path in sources if repaired.sources[path] != sources[path]]
    text = difference(sources, repaired.sources)
    stream = sys.stdout if shows else sys.stderr
    stream.write(text)
    stream.flush()  # print the diff first, even if a write fails
    if writes:
        for path in changed:
            write(path, repaired.sources[path])
        if changed and shows:
            print()
    _say(repaired, writes=writes)
    return repaired.left, bool(changed) and not writes


def _say(repaired: Repaired, *, writes: bool) -> None:
    counts = Counter(finding.code for finding in repaired.findings)
    codes = ", ".join(f"{code}{f' × {count}' if count > 1 else ''}" for code, count in sorted(counts.items()))
    some = f"{len(repaired.findings)} repair{'s' if len(repaired.findings) != 1 else ''}"
    if not counts:
        say("no repair is certain")
    elif writes:
        say(f"{some}: {codes}")
    else:
        say(f"{some} for --fix: {codes}")


def write(path: str, source: bytes) -> None:
    """Replace a file atomically and keep its mode; follow a symbolic link to its target."""
    target = os.path.realpath(path)
    fresh = f"{target}.echelon-{os.getpid()}"
    try:
        with open(target, "r+b"):
            pass  # a file that may not be written is not replaced either
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
