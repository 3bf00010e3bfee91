"""The page as one document, and the policy by which a browser runs nothing else and asks nobody else."""

from __future__ import annotations

import base64
import hashlib
import os
from dataclasses import dataclass

from echelon.environment import regular_files

_FOLDER = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The document, and its header Content-Security-Policy."""

    content: bytes
    policy: str


def read() -> Page:
    """Put the style and the script into the page; the policy names their hashes."""
    html, style, script = (
        regular_files.read_text(os.path.join(_FOLDER, f"page.{kind}")) for kind in ("html", "css", "js")
    )
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",  # no text of a run becomes markup, even if the script tried
            "trusted-types 'none'",
        ]
    )
    content = html.replace("{style}", style).replace("{script}", script)
    return Page(content=content.encode(), policy=policy)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
