"""Measure what trainings take of a GPU's memory: `PYTHONPATH=src:. python -m benchmarks.gpu.peaks --out FILE`.

Each line of the file is one training of `programs/peak.py`: its options, and the bytes of each phase of its last step;
or the largest batch that fits into so many GiB. A model whose package is not installed is named and left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu.bench import this_python

PROGRAM = Path(__file__).parent / "programs" / "peak.py"
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
    """Write what each training takes; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.peaks", description=__doc__)
    parser.add_argument("--out", required=True)
    out = Path(parser.parse_args(arguments).out)
    lines, num_failed = [], 0
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for task in (*pool.map(_peak, _trainings()), *pool.map(_largest, LARGEST)):
            lines += [task] if isinstance(task, dict) else []
            num_failed += not isinstance(task, dict)
            out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return int(num_failed > 0)


def _trainings() -> Iterator[str]:
    for model in MODELS:
        for precision in ("fp32", "amp"):
            yield f"{model} --batch {BATCHES.get(model, 8)} --precision {precision}"
    yield from MORE.split("\n")[1:-1]


def _run(words: str) -> subprocess.CompletedProcess[str]:
    command = [this_python(), str(PROGRAM), *words.split()]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)


def _peak(words: str) -> dict[str, object] | None:
    done = _run(words)
    if done.returncode:
        print(f"peaks: {words}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    found: dict[str, object] = json.loads(done.stdout)
    return found


def _largest(words: str) -> dict[str, object]:
    """Find the largest batch that fits, to a sixteenth of it."""
    fits, fails = 0, 1
    while _has_room(words, fails):
        fits, fails = fails, fails * 2
    while fails - fits > max(1, fits // 16):
        middle = (fits + fails) // 2
        fits, fails = (middle, fails) if _has_room(words, middle) else (fits, middle)
    return {"training": words, "limit_gib": LIMIT_GIB, "fits": fits, "fails": fails}


def _has_room(words: str, batch: int) -> bool:
    done = _run(f"{words} --batch {batch} --limit {LIMIT_GIB}")
    if done.returncode and "OutOfMemory" not in done.stderr:
        raise RuntimeError(f"{words}: {done.stderr[-500:]}")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
