"""Are the allowed cores near to the devices?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey

LOCAL = 10


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report devices without an allowed core in their NUMA domain."""
    del wanted
    visible = set(survey.devices.visible)
    far = [device for device in survey.devices.devices if device.number in visible and device.distance > LOCAL]
    if far:
        numbers = ",".join(str(device.number) for device in far)
        domains = ",".join(str(number) for number in sorted({device.numa for device in far if device.numa >= 0}))
        yield Finding(
            severity="warning",
            message=f"the ranks may use no core near device{'s' if len(far) > 1 else ''} {numbers}",
            evidence=f"allowed: {survey.cores.allowed} (NUMA domains "
            f"{','.join(map(str, survey.cores.numa_of_allowed))}); the devices are in {domains or 'others'}",
            remedy="request cores together with devices: --cpus-per-gpu, or whole nodes: --exclusive",
            source="lumi-userguide: docs/runjobs/scheduled-jobs/distribution-binding.md",
        )
