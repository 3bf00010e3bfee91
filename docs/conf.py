"""How `make docs` builds the site: Sphinx over the pages as they lie, so that their links hold on both."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

import echelon

project = "echelon"
copyright = "the authors of echelon"
version = release = echelon.__version__
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["README.md", "GLOSSARY.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "docs/*/*.md"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure", "toc.not_included"]
html_theme = "furo"
html_title = f"echelon {version}"
html_show_sphinx = False
REDIRECT = (
    '<!doctype html><meta charset="utf-8"><title>echelon</title><meta http-equiv="refresh" content="0; url={url}">'
)
FENCE = re.compile(r"^```(\w+) [\w./-]+$", re.MULTILINE)


def leave_file_names(app: Sphinx, name: str, source: list[str]) -> None:
    """A fence names its file, as in ```python train.py, which Markdown allows and MyST takes for options."""
    source[0] = FENCE.sub(r"```\1", source[0])


def write_front_door(app: Sphinx, exception: Exception | None) -> None:
    """Send those who open the folder to the first page."""
    if exception is None:
        (Path(app.outdir) / "index.html").write_text(REDIRECT.format(url=f"{root_doc}.html"))


def setup(app: Sphinx) -> None:
    """Connect the two."""
    app.connect("source-read", leave_file_names)
    app.connect("build-finished", write_front_door)
