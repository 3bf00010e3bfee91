"""Measure what trainings take of a GPU's memory: `PYTHONPATH=src:. python -m benchmarks.gpu.peaks --out FILE`.

The first line of the file names the device and PyTorch. Each other line is one training of `programs/peak.py`: its
options, and the bytes of each phase of its last step; or the largest batch that fits into so many GiB. A training that
fails, as where its package is not installed, is named and left out; the exit code is then 1, and 2 without a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu import facts
from benchmarks.gpu.bench import this_python

PROGRAM = Path(__file__).parent / "programs" / "peak.py"
NO_DEVICE = 2
AT_A_TIME = 5
SECONDS = 120
LIMIT_GIB = 16
BATCHES = {"mlp": 256, "cnn": 64, "resnet50": 32, "vit": 32, "fcn": 16}
MODELS = ("mlp", "gpt", "gpt2", "bert", "llama", "t5", "lstm", "cnn", "resnet50", "vit", "fcn")
MORE = """
gpt --batch 8 --precision bf16
llama --batch 8 --precision bf16
gpt2 --batch 8 --precision fp16
llama --batch 8 --checkpointing
llama --batch 8 --checkpointing --precision amp
gpt2 --batch 8 --checkpointing
bert --batch 8 --checkpointing --precision amp
gpt --batch 8 --optimizer fused
gpt --batch 8 --optimizer sgd
gpt --batch 8 --optimizer loop
mlp --batch 256 --optimizer fused
mlp --batch 256 --optimizer sgd
mlp --batch 256 --optimizer loop
gpt --batch 32
resnet50 --batch 128
resnet50 --batch 128 --precision amp --optimizer sgd
llama --batch 16 --precision amp
gpt2 --batch 1
cnn --batch 256
lstm --batch 32
t5 --batch 32 --precision amp
"""
LARGEST = ("gpt", "resnet50", "vit --precision amp", "gpt2 --precision amp", "llama --precision amp")


def main(arguments: list[str]) -> int:
    """Write what each training takes; return 0, 1 if one failed, 2 if there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.peaks", description=__doc__)
    parser.add_argument("--out", required=True)
    out = Path(parser.parse_args(arguments).out)
    here = facts.ask(this_python())
    if here.why_not():
        print(f"peaks: error: {here.why_not()}", file=sys.stderr)
        return NO_DEVICE
    num_failed = 0
    with out.open("w", encoding="utf-8") as file, ThreadPoolExecutor(AT_A_TIME) as pool:
        file.write(json.dumps({"device": here.devices[0], "torch": here.torch}) + "\n")
        for measured in itertools.chain(pool.map(_peak, _trainings()), pool.map(_largest, LARGEST)):
            num_failed += measured is None
            if measured is not None:
                file.write(json.dumps(measured) + "\n")
                file.flush()
    return int(num_failed > 0)


def _trainings() -> Iterator[str]:
    for model in MODELS:
        for precision in ("fp32", "amp"):
            yield f"{model} --batch {BATCHES.get(model, 8)} --precision {precision}"
    yield from MORE.split("\n")[1:-1]


class _Failed(Exception):
    """A training ended with another error than a full device."""


def _run(words: str) -> str:
    """Return what a training prints, or "" if its device was full."""
    command = [this_python(), str(PROGRAM), *words.split()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _Failed(f"it still ran after {SECONDS} s") from None
    if done.returncode and "OutOfMemory" not in done.stderr:
        raise _Failed((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return "" if done.returncode else done.stdout


def _peak(words: str) -> dict[str, object] | None:
    try:
        answer = _run(words)
    except _Failed as error:
        print(f"peaks: {words}: {error}", file=sys.stderr)
        return None
    measured: dict[str, object] | None = json.loads(answer) if answer else None
    return measured


def _largest(words: str) -> dict[str, object] | None:
    """Find the largest batch that fits, to a sixteenth of it."""

    def has_room(batch: int) -> bool:
        return bool(_run(f"{words} --batch {batch} --limit {LIMIT_GIB}"))

    fits, fails = 0, 1
    try:
        while has_room(fails):
            fits, fails = fails, fails * 2
        while fails - fits > max(1, fits // 16):
            middle = (fits + fails) // 2
            fits, fails = (middle, fails) if has_room(middle) else (fits, middle)
    except _Failed as error:
        print(f"peaks: {words}: {error}", file=sys.stderr)
        return None
    return {"training": words, "limit_gib": LIMIT_GIB, "fits": fits, "fails": fails}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
