"""Does a container hide what the ranks need?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report an image without a network plugin, and a Python from outside the image."""
    if not survey.software.container:
        return
    has_slingshot = any(each.kind == "slingshot" and each.is_up for each in survey.network.interfaces)
    if wanted.num_nodes > 1 and has_slingshot and not survey.network.plugins:
        yield Finding(
            severity="warning",
            message="the image has no plugin for Slingshot: the collectives use sockets",
            evidence=survey.software.container,
            remedy="use the machine's own image, or bind the plugin and put it on LD_LIBRARY_PATH",
            source="the LUMI slides on extreme scale: containers from elsewhere",
        )
    home = survey.settings.variables.get("HOME", "")
    place = survey.software.places.get("torch", "")
    if home and home != "/" and place.startswith(home + "/.local"):
        yield Finding(
            severity="warning",
            message="torch comes from ~/.local, not from the image",
            evidence=f"{place} inside {survey.software.container}",
            remedy="export PYTHONNOUSERSITE=1",
            source="csc-user-guide: Python in containers",
        )
