"""Is the library there by which the collectives reach the fast network?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey

NAME = "NCCL_NET_PLUGIN"


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report a plugin that is missing where Slingshot needs it, or that is named and is not there."""
    if wanted.num_nodes < 2 or not survey.devices.visible:
        return
    asked = survey.settings.variables.get(NAME, "")
    found = survey.network.plugins
    has_slingshot = any(each.kind == "slingshot" and each.is_up for each in survey.network.interfaces)
    usual = wanted.network.plugin if wanted.network is not None else ""
    if asked.lower() == "none" and has_slingshot:
        yield Finding(
            severity="warning",
            message=f"{NAME}=none: Slingshot is reached by a plugin alone, so sockets are taken",
            evidence=", ".join(found) or "no plugin is found either",
            remedy=f"unset {NAME}",
            source="NCCL documentation: environment variables, NCCL_NET_PLUGIN",
        )
    elif asked and asked.lower() != "none" and not any(asked in path for path in found):
        yield Finding(
            severity="error",
            message=f"{NAME}={asked}: the loader finds no such library",
            evidence=f"found: {', '.join(found) or 'none'}",
            remedy=f"unset {NAME}   or put its folder on LD_LIBRARY_PATH",
            source="NCCL documentation: environment variables, NCCL_NET_PLUGIN",
        )
    elif has_slingshot and not found and not survey.software.container:
        yield Finding(
            severity="warning",
            message="no plugin for Slingshot is found: the collectives take sockets, published at 5.4 GB/s where "
            "the plugin has 123",
            evidence="neither on LD_LIBRARY_PATH nor in /etc/ld.so.cache: libnccl-net*.so, librccl-net*.so",
            remedy=f"module load {usual or 'aws-ofi-nccl'}   or take the machine's container: --container",
            source=wanted.network.source if wanted.network is not None else "CSCS documentation: NCCL",
        )
