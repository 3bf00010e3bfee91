"""`echelon frameworks`: what this Python has installed, what it was built for, and what does not work together."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.talk import print_json
from echelon.dialects import installed
from echelon.dialects.installed import FRAMEWORKS, Build
from echelon.errors import EchelonError, UsageError
from echelon.hardware import vendors
from echelon.host import Host
from echelon.units import aligned

IMPORT_SECONDS = 300.0  # importing tensorflow from a cold shared disk can take so long
OPTIONS = (
    Option(names=("--import",), help="import each in its own process, and show how long the import takes"),
    Option(names=("--json",), help="as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)

HELP = Help(
    command="frameworks",
    usage=("[options] [NAME…]",),
    about="List the frameworks that are installed for this Python, the devices they were built for, and "
    "known conflicts. Nothing is imported.\n"
    "Exit code 1: something cannot work, or a NAME is not installed.",
    operands=(Option(names=("NAME",), choices=tuple(row.name for row in FRAMEWORKS)),),
    groups=(("options", OPTIONS),),
    example="echelon frameworks deepspeed torch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What is known of one framework's installation."""

    name: str
    version: str
    """Empty: not installed."""
    tested: str
    install: str
    note: str
    import_seconds: float | None = None
    import_error: str = ""


def main(arguments: list[str]) -> int:
    """Print the table; return 1 if something cannot work."""
    scanned = HELP.scan_all(arguments)
    names = _names(scanned.rest)
    from echelon.environment import devices

    versions, build = installed.versions(), installed.torch_build()
    vendor, num_devices = devices.vendor(os.environ), len(devices.visible(os.environ))
    wrong = installed.problems(versions, build, vendor)
    if scanned.rest:
        wrong = [problem for problem in wrong if problem.package in names]
    host = Host()
    tries = "import" in scanned.values
    seen = [_look(name, versions.get(name, ""), build, host if tries else None) for name in names]
    if "json" in scanned.values:
        told = {"frameworks": [asdict(each) for each in seen], "problems": [asdict(each) for each in wrong]}
        print_json(python=sys.executable, devices=num_devices, vendor=vendor, **told)
    else:
        there = f"{num_devices} {vendors.named(vendor).title}" if vendor else "none"
        print(f"python     {sys.executable}\ndevices    {there}\n")
        print("\n".join(aligned([("framework", "version", "tested", ""), *(_row(each) for each in seen)])))
        for problem in wrong:
            print(f"\n{'error' if problem.breaks else 'note'}: {problem.text}\n  hint: {problem.hint}")
    is_missing = bool(scanned.rest) and any(not each.version for each in seen)
    fails = any(problem.breaks for problem in wrong) or any(each.import_error for each in seen)
    return 1 if is_missing or fails else 0


def _names(rest: Sequence[str]) -> list[str]:
    known = [row.name for row in FRAMEWORKS]
    for name in rest:
        if name not in known:
            raise UsageError(
                f"echelon does not know the framework {name}", hint=f"the frameworks are {', '.join(known)}"
            )
    return list(dict.fromkeys(rest)) or known


def _look(name: str, version: str, build: Build | None, host: Host | None) -> Installation:
    row = next(row for row in FRAMEWORKS if row.name == name)
    note = ""
    if name == "torch" and build is not None:
        note = f"for {build.devices}"
    elif name == "deepspeed" and version:
        note = f"operators for torch {built}" if (built := installed.prebuilt_for()) else "operators built at first use"
    elif not version and installed.is_there(name):
        note = "installed, but not by pip"
    seconds, error = _import(name, host) if host is not None and version else (None, "")
    return Installation(
        name=name, version=version, tested=row.tested, install=f"pip install {row.install}", note=note,
        import_seconds=seconds, import_error=error,
    )  # fmt: skip


def _import(name: str, host: Host) -> tuple[float | None, str]:
    """Import one framework in a child process; return the seconds, or the last line of its error."""
    began = time.monotonic()
    try:
        done = host.ask([sys.executable, "-c", f"import {name}"], timeout_seconds=IMPORT_SECONDS)
    except EchelonError as error:
        return None, error.message
    if done.exit_code == 0:
        return round(time.monotonic() - began, 1), ""
    lines = done.stderr.strip().splitlines() or [f"exit code {done.exit_code}"]
    return None, lines[-1]


def _row(framework: Installation) -> tuple[str, str, str, str]:
    last = framework.note if framework.version or framework.note else framework.install
    if framework.import_seconds is not None:
        last = f"{last + ', ' if last else ''}imported in {framework.import_seconds} s"
    elif framework.import_error:
        last = f"import fails: {framework.import_error}"
    return framework.name, framework.version or "-", framework.tested, last
