"""The page of the linter names every rule, as the rules' own pages have it."""

import re
from pathlib import Path

from echelon.cli.lint import OPTIONS
from echelon.lint.pages import all_pages

PAGE = (Path(__file__).parents[2] / "docs/lint.md").read_text("utf-8")


def test_every_rule_is_on_the_page() -> None:
    """The tables have each rule once, with its severity and title, and no rule that is gone."""
    rows = re.findall(r"^\| (ECH\d+) \| (\w+) \| (.*?) \|$", PAGE, re.MULTILINE)
    assert rows == [(page.code, page.severity, page.title.replace("|", "\\|")) for page in all_pages().values()]


def test_every_option_is_on_the_page() -> None:
    """Every spelling of every option of `echelon lint` has a row."""
    for name in (name for option in OPTIONS for name in option.names):
        assert re.search(rf"^\|.*`{re.escape(name)}[ `].*\|", PAGE, re.MULTILINE), name
