"""Is there a variable that nothing reads, like one that something does?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey
from echelon.script.misspellings import meant

FAMILIES = ("NCCL", "NCLL", "NCC_", "RCCL", "RCC", "MIOPEN", "MIOPN", "MOIPEN", "MIPEN", "OMP", "TORCH_NCCL", "CUDA_",
            "ROCR", "HIP_", "HSA_", "GLOO_", "FI_", "CXI_", "OFI_NCCL", "UCX_", "MASTER_", "PYTORCH_", "TRITON_", "HF_",
            "TORCHINDUCTOR")  # fmt: skip


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report names that are nearly those of known variables, and names that no current version reads."""
    known = set(wanted.known_variables)
    for name, value in survey.settings.variables.items():
        if name in wanted.renamed_variables:
            new = wanted.renamed_variables[name]
            if new not in survey.settings.variables:
                yield Finding(
                    severity="note", message=f"{name} is an old name; the new name is {new}",
                    evidence=f"{name}={value}",
                    remedy=f"export {new}={value}; unset {name}", source="the release notes of its program",
                )  # fmt: skip
            continue
        if not known or name in known or not name.startswith(FAMILIES):
            continue
        near = meant(name, known)
        if near:
            yield Finding(
                severity="warning",
                message=f"nothing reads {name}; programs read {near[0]}",
                evidence=f"{name}={value}",
                remedy=f"export {near[0]}={value}; unset {name}",
                source="a guide of a computing centre had a misspelt MIOpen variable for months",
            )
