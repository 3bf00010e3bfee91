"""Is there a variable that nothing reads, like one that something does?"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey

LIKENESS = 0.87
PLACES = ("PATH", "DIR", "DIRECTORY", "FOLDER", "HOME")
FAMILIES = ("NCCL", "NCLL", "NCC_", "RCCL", "RCC", "MIOPEN", "MIOPN", "MOIPEN", "MIPEN", "OMP", "TORCH_NCCL", "CUDA_",
            "ROCR", "HIP_", "HSA_", "GLOO_", "FI_", "CXI_", "OFI_NCCL", "UCX_", "MASTER_", "PYTORCH_", "TRITON_", "HF_",
            "TORCHINDUCTOR")  # fmt: skip


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report names that are nearly those of known variables, and names that were read once."""
    known = set(wanted.known_variables)
    for name, value in survey.settings.variables.items():
        if name in wanted.renamed_variables:
            new = wanted.renamed_variables[name]
            if new not in survey.settings.variables:
                yield Finding(
                    severity="note", message=f"{name} is called {new} today", evidence=f"{name}={value}",
                    remedy=f"export {new}={value}; unset {name}", source="the release notes of its program",
                )  # fmt: skip
            continue
        if not known or name in known or not name.startswith(FAMILIES):
            continue
        near = [*_other_place(name, known), *difflib.get_close_matches(name, known, n=1, cutoff=LIKENESS)]
        if near and _is_slip(name, near[0]):
            yield Finding(
                severity="warning",
                message=f"nothing reads {name}; {near[0]} is read",
                evidence=f"{name}={value}",
                remedy=f"export {near[0]}={value}; unset {name}",
                source="a misspelt MIOpen variable stood in a centre's guide for months",
            )


def _other_place(name: str, known: set[str]) -> list[str]:
    """Return the known name that says DIR where this one says PATH."""
    stem, _, last = name.rpartition("_")
    return [f"{stem}_{word}" for word in PLACES if last in PLACES and f"{stem}_{word}" in known]


def _is_slip(name: str, known: str) -> bool:
    """Tell a slip of the finger from another variable of the same family: those differ by whole words or numbers."""
    words, others = name.split("_"), known.split("_")
    if words[:-1] == others[:-1] and words[-1] in PLACES and others[-1] in PLACES:
        return True
    if len(words) != len(others):
        return abs(len(words) - len(others)) == 1
    different = [(one, other) for one, other in zip(words, others, strict=True) if one != other]
    return len(different) == 1 and difflib.SequenceMatcher(None, *different[0]).ratio() >= 0.6
