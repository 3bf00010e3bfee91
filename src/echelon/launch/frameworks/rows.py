"""The frameworks as rows: names, the extra that installs each, and known conflicts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework."""

    name: str
    """The name that scripts import."""
    distributions: tuple[str, ...]
    """The names of the distribution and of its other builds on pip."""
    install: str
    """The command that installs it."""
    tested: str
    """The version that echelon is tested with."""


FRAMEWORKS = (
    Framework(name="torch", distributions=("torch",), install="torch", tested="2.13.0"),
    Framework(name="transformers", distributions=("transformers",), install="'echelon[hf]'", tested="5.23.0"),
    Framework(name="accelerate", distributions=("accelerate",), install="'echelon[accelerate]'", tested="1.15.0"),
    Framework(name="lightning", distributions=("lightning",), install="'echelon[lightning]'", tested="2.6.6"),
    Framework(name="pytorch_lightning", distributions=("pytorch-lightning",), install="'echelon[lightning]'",
              tested="2.6.6"),
    Framework(name="deepspeed", distributions=("deepspeed",), install="'echelon[deepspeed]'", tested="0.19.8"),
    Framework(name="horovod", distributions=("horovod",), install="'echelon[horovod]'", tested="0.28.1"),
    Framework(name="tensorflow", distributions=("tensorflow", "tensorflow-cpu", "tensorflow-rocm"),
              install="'echelon[tensorflow]'", tested="2.21.0"),
    Framework(name="mpi4py", distributions=("mpi4py",), install="'echelon[mpi]'", tested="4.1.2"),
    Framework(name="jax", distributions=("jax",), install="'echelon[jax]'", tested="0.10.2"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two packages that do not work together."""

    one: str
    below: str
    """Affects versions of `one` below this; empty: all."""
    other: str
    other_from: str
    """Affects versions of `other` from this on; empty: all."""
    why: str
    breaks: bool
    """Whether a script that imports `one` cannot run."""
    hint: str
    source: str


CONFLICTS = (
    Conflict(one="deepspeed", below="0.14.4", other="torch", other_from="2.4", breaks=True,
             why="it imports a name that torch.distributed.elastic no longer has", hint="pip install -U deepspeed",
             source="https://github.com/deepspeedai/DeepSpeed/issues/5603"),
    Conflict(one="mosaicml-streaming", below="", other="transformers", other_from="5", breaks=False,
             why="it installs old versions of numpy and transformers, and another torchvision",
             hint="install it in its own environment", source="seen with 0.13.0, 2026-11-21"),
    Conflict(one="horovod", below="0.29", other="torch", other_from="2.1", breaks=False,
             why="it builds only if you change its CMake files to C++17 or newer", hint="see docs/frameworks.md",
             source="seen with 0.28.1 and torch 2.13, 2026-11-21"),
    Conflict(one="tensorflow", below="", other="keras", other_from="3", breaks=False,
             why="fit() does not support MultiWorkerMirroredStrategy", hint="a loop with strategy.run works",
             source="https://github.com/keras-team/keras/issues/20585"),
)  # fmt: skip
COMPANIONS = (("transformers", "accelerate"), ("torchvision", "torch"), ("torchaudio", "torch"), ("lightning", "torch"),
              ("accelerate", "torch"), ("deepspeed", "torch"), ("transformers", "torch"))  # fmt: skip
"""Pairs of packages; the first states in its metadata which versions of the second it needs."""
