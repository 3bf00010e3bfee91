"""Have all nodes the same settings?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from echelon.checks.between.majority import majority
from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey

MUST_AGREE = (
    "NCCL_",
    "RCCL_",
    "FI_",
    "OFI_",
    "CXI_",
    "GLOO_",
    "MASTER_",
    "TORCH_NCCL_",
    "TORCH_FR_",
    "TORCH_DIST_USE_NCCL2",
    "OMP_NUM_THREADS",
    "HSA_",
    "UCX_",
)
OF_EACH_NODE = ("NCCL_HOSTID", "NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_IB_HCA")


def look(surveys: Sequence[Survey], wanted: Wanted) -> Iterator[Finding]:
    """Report network variables whose values differ between nodes."""
    del wanted
    names = {name for survey in surveys for name in survey.settings.variables}
    for name in sorted(name for name in names if name.startswith(MUST_AGREE) and name not in OF_EACH_NODE):
        majority_value = majority(surveys, "settings", partial(_value, name))
        for survey, value in majority_value.others if majority_value is not None else ():
            usual = majority_value.value if majority_value is not None else ""
            yield Finding(
                node=survey.node,
                severity="warning",
                message=f"{name} is {value or 'not set'}; on most nodes it is {usual or 'not set'}",
                evidence="look for a start-up file of the shell, or a prologue of this node",
                remedy=f"echelon run --env {name}={usual or value} …   sets the same value on all nodes",
            )


def _value(name: str, survey: Survey) -> str:
    return survey.settings.variables.get(name, "")
