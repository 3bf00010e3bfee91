"""Is the library there by which the collectives reach the fast network?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey

NAME = "NCCL_NET_PLUGIN"


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report a missing plugin on Slingshot, and a named plugin that does not exist."""
    if wanted.num_nodes < 2 or not survey.devices.visible:
        return
    asked = survey.settings.variables.get(NAME, "")
    plugins = survey.network.plugins
    has_slingshot = any(each.kind == "slingshot" and each.is_up for each in survey.network.interfaces)
    usual = wanted.network.plugin if wanted.network is not None else ""
    if asked.lower() == "none" and has_slingshot:
        yield Finding(
            severity="warning",
            message=f"{NAME}=none, but Slingshot needs a plugin: the collectives use sockets",
            evidence=", ".join(plugins) or "there is no plugin either",
            remedy=f"unset {NAME}",
            source="NCCL documentation: environment variables, NCCL_NET_PLUGIN",
        )
    elif asked and asked.lower() != "none" and not any(asked in path for path in plugins):
        yield Finding(
            severity="error",
            message=f"{NAME}={asked}: the loader does not find this library",
            evidence=f"found: {', '.join(plugins) or 'none'}",
            remedy=f"unset {NAME}   or put its folder on LD_LIBRARY_PATH",
            source="NCCL documentation: environment variables, NCCL_NET_PLUGIN",
        )
    elif has_slingshot and not plugins and not survey.software.container:
        yield Finding(
            severity="warning",
            message="there is no plugin for Slingshot: the collectives use sockets, published at 5.4 GB/s where the "
            "plugin has 123",
            evidence="neither on LD_LIBRARY_PATH nor in /etc/ld.so.cache: libnccl-net*.so, librccl-net*.so",
            remedy=f"module load {usual or 'aws-ofi-nccl'}   or use the machine's container: --container",
            source=wanted.network.source if wanted.network is not None else "CSCS documentation: NCCL",
        )
