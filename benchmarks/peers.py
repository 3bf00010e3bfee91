"""Count how many scripts each tool trains as one device does: `python -m benchmarks.peers`, from the repository root.

Each script of tests/scripts runs on one device, on several ranks by `echelon run --scale data`, and on as many after
the changes that the guides of Accelerate and Lightning Fabric ask for (peers_tools). It runs once as it is written and
once with its samples in the order of the dataset, since the peers shuffle otherwise than one device. It needs an
environment with `pip install torch==2.13.0 accelerate lightning numpy tensorboard` and echelon. Examples:

    python -m benchmarks.peers --only plain_loop iterable
    python -m benchmarks.peers --json > peers.json       all scripts, half an hour on two cores
    python -m benchmarks.peers --read peers.json --write
    python -m benchmarks.peers --read peers.json --tools echelon --write     only our column anew
"""

from __future__ import annotations

import argparse
import ast
import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from importlib import metadata
from typing import Any

from benchmarks.meter import BenchmarkError, clean_environ
from benchmarks.peers_tools import tables
from benchmarks.peers_tools.compare import Done, are_losses_equal, difference_of_weights, read_failure, read_losses
from benchmarks.peers_tools.guides import GUIDES, Guide
from benchmarks.peers_tools.rewrite import NeedsMore, in_file_order, rewrite
from benchmarks.peers_tools.tables import FILE_ORDER, ORDERS, OURS, Result

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPTS = os.path.join(ROOT, "tests", "scripts")
TOOLS = (OURS, *(guide.name for guide in GUIDES))
LIMIT_SECONDS = 60
EXIT_CODE_TIMEOUT = 124
AT_A_TIME = 2


def main() -> int:
    """Run the scripts with each tool and print the tables."""
    options = _options()
    measured: dict[str, Any] = {"circumstances": "", "results": []}
    if options.read:
        with open(options.read, encoding="utf-8") as file:
            measured = json.load(file)
    if options.tools or not options.read:
        measured = _merge(measured, _measure(options))
    results = [Result(**one) for one in measured["results"]]
    text = f"{measured['circumstances']}\n\n{tables.markdown(results, [guide.name for guide in GUIDES])}"
    print(json.dumps(measured, indent=1) if options.json else text)
    if options.write:
        tables.write(os.path.join(ROOT, "docs", "peers.md"), text)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=_names(), metavar="SCRIPT", help="of tests/scripts, without .py")
    parser.add_argument("--order", nargs="+", choices=ORDERS, help="of the samples; both by default")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, metavar="TOOL", help=f"of {', '.join(TOOLS)}")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="2 by default")
    parser.add_argument("--json", action="store_true", help="print every result")
    parser.add_argument("--read", metavar="FILE", help="take what --json printed; with --tools these anew")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/peers.md")
    return parser.parse_args()


def _names() -> list[str]:
    names = [name.removesuffix(".py") for name in os.listdir(SCRIPTS) if name.endswith(".py")]
    return sorted(name for name in names if not name.startswith(("test_", "__")))


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run all scripts, two at a time."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder, ThreadPoolExecutor(AT_A_TIME) as pool:
        measure = partial(_measure_script, options.tools or TOOLS, folder=folder, num_ranks=options.ranks)
        orders, names = options.order or ORDERS, options.only or _names()
        _refuse_missing(names)
        futures = [pool.submit(measure, name, order) for order in orders for name in names]
        results = [asdict(result) for future in futures for result in future.result()]
    return {"circumstances": _circumstances(options.ranks), "results": results}


def _refuse_missing(names: Sequence[str]) -> None:
    """Raise BenchmarkError if a package of a script is not installed: the scripts take half an hour."""
    for name in names:
        with open(os.path.join(SCRIPTS, f"{name}.py"), encoding="utf-8") as file:
            nodes = list(ast.walk(ast.parse(file.read())))
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        wanted = {word.partition(".")[0] for word in imported}
        wanted |= {"tensorboard"} if "torch.utils.tensorboard" in imported else set()
        missing = sorted(word for word in wanted if importlib.util.find_spec(word) is None)
        if missing:
            raise BenchmarkError(f"{name}.py needs {missing[0]}: pip install {' '.join(missing)}")


def _merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Put new results in the place of old ones of the same script, order and tool."""
    keys = ("script", "order", "tool")
    results = {tuple(one[key] for key in keys): one for one in [*old["results"], *new["results"]]}
    circumstances = dict.fromkeys(text for text in (old["circumstances"], new["circumstances"]) if text)
    return {"circumstances": "\n".join(circumstances), "results": list(results.values())}


def _circumstances(num_ranks: int) -> str:
    tools = ("torch", "echelon", *(guide.distribution for guide in GUIDES))
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in tools)
    return (
        f"Measured on {datetime.date.today()} with {num_ranks} ranks (gloo, CPU, one thread each): "
        f"Python {platform.python_version()}, {versions}."
    )


def _measure_script(tools: Sequence[str], name: str, order: str, *, folder: str, num_ranks: int) -> list[Result]:
    """Run one script on one device and with each tool."""
    with open(os.path.join(SCRIPTS, f"{name}.py"), encoding="utf-8") as file:
        source = file.read()
    source = in_file_order(source) if order == FILE_ORDER else source
    work = os.path.join(folder, order, name)
    alone = _run(source, os.path.join(work, "alone"), [])
    if alone.returncode:
        raise BenchmarkError(f"{name}.py fails on one device:\n{alone.err}")
    found = Result(script=name, order=order)
    results = [_measure_peer(guide, source, alone, work, num_ranks, found) for guide in GUIDES if guide.name in tools]
    if OURS in tools:
        done = _run(source, os.path.join(work, OURS), _launch(num_ranks, "data"))
        results.insert(0, _judge(found.but(tool=OURS), done, alone, raised_by="echelon/train/"))
    for result in results:
        print(f"{name}, {order}, {result.tool}: {result.outcome} {result.reason}", file=sys.stderr, flush=True)
    return results


def _measure_peer(guide: Guide, source: str, alone: Done, work: str, num_ranks: int, found: Result) -> Result:
    found = found.but(tool=guide.name)
    try:
        changed = rewrite(source, guide, num_ranks)
    except NeedsMore as error:
        return found.but(outcome="needs more", reason=str(error))
    done = _run(changed.text, os.path.join(work, guide.name), _launch(num_ranks, "off"))
    return _judge(found.but(num_changed=changed.num_changed), done, alone, raised_by=guide.package)


def _launch(num_ranks: int, scale: str) -> list[str]:
    options = ["--scale", scale, "--timeout", str(LIMIT_SECONDS), "--run-dir", "../run"]
    return ["-m", "echelon", "run", "-n", str(num_ranks), *options]


def _run(source: str, folder: str, launch: Sequence[str]) -> Done:
    """Run a script to its end, in a folder of its own beside the one of its run."""
    work = os.path.join(folder, "work")
    os.makedirs(work)
    script = os.path.join(folder, "script.py")
    with open(script, "w", encoding="utf-8") as file:
        file.write(source)
    done = subprocess.run(
        [sys.executable, *launch, script, "model.pt"],
        cwd=work, env=clean_environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=2 * LIMIT_SECONDS, check=False,
    )  # fmt: skip
    return Done(folder=work, returncode=done.returncode, out=done.stdout, err=done.stderr)


def _judge(found: Result, done: Done, alone: Done, *, raised_by: str) -> Result:
    """Say how a run compares with the one on one device."""
    if done.returncode == EXIT_CODE_TIMEOUT:
        return found.but(outcome="crashed", reason=f"still ran after {LIMIT_SECONDS} s")
    if done.returncode:
        failure = read_failure(done, os.path.join(done.folder, "..", "run", "logs", "attempt-0"))
        is_refused = raised_by in failure.is_raised_by
        return found.but(outcome="refused" if is_refused else "crashed", reason=failure.reason)
    has_losses = are_losses_equal(read_losses(done.out), read_losses(alone.out))
    has_weights, difference = difference_of_weights(done.weights, alone.weights)
    outcome = {(True, True): "equal", (True, False): "equal losses", (False, True): "equal weights"}
    return found.but(outcome=outcome.get((has_losses, has_weights), "different"), difference=difference)


if __name__ == "__main__":
    sys.exit(main())
