"""The site of `make docs`: every page is in the order of reading, no link is dead, and a browser shows it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or ""


class Page(HTMLParser):
    """The links of a page, and the anchors that others may link to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and (name == "href" or name == "src"):
                self.links.append(value)
            if value and name in ("id", "name"):
                self.anchors.add(value)


@cache
def page(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build as `make docs` does; a warning is an error."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", "-c", "docs", ".", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    return target


def dead_links(site: Path) -> Iterator[str]:
    for path in site.rglob("*.html"):
        for link in page(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                yield f"{path.relative_to(site)}: {link}"
            elif parts.fragment and target.suffix == ".html" and parts.fragment not in page(target).anchors:
                yield f"{path.relative_to(site)}: {link} has no such anchor"


def test_no_link_is_dead(site: Path) -> None:
    """Each link within the site leads to a file, and to an anchor in it."""
    assert len(page(site / "docs" / "index.html").links) > 50
    assert list(dead_links(site)) == []


def test_every_page_is_in_the_order_of_reading(site: Path) -> None:
    """The first page's menu leads to each page."""
    menu = {(site / "docs" / urlsplit(link).path).resolve() for link in page(site / "docs" / "index.html").links}
    pages = {path for path in site.rglob("*.html") if path.parent != site or path.stem.isupper()}
    assert {path.relative_to(site) for path in pages - menu if path.stem not in ("index",)} == set()


def test_search_knows_the_pages(site: Path) -> None:
    """The index of the search has the words of a page."""
    assert re.search(r"binding", (site / "searchindex.js").read_text("utf-8"))


def test_browser_shows_the_first_page(site: Path, tmp_path: Path) -> None:
    """A real browser opens the folder, follows to the first page and draws its menu."""
    if not BROWSER:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "there is no Chromium here: apt install chromium"
        )
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom",
        (site / "docs" / "index.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert "Come from another tool" in done.stdout
