"""The page of the linter names every rule, as the rules' own pages and the tests have it."""

import re

from tests.lint.page import PATH, rendered

from echelon.cli.lint import OPTIONS
from echelon.lint.pages import all_pages

PAGE = PATH.read_text("utf-8")


def test_every_rule_is_on_the_page() -> None:
    """The tables have each rule once, in order, and no rule that is gone."""
    assert re.findall(r"^\| (ECH\d+) \|", PAGE, re.MULTILINE) == list(all_pages())


def test_what_is_said_of_the_rules_is_so() -> None:
    """Severity, title, what --fix repairs, what is shown on Slurm, and the score; `python -m tests.lint` writes it."""
    assert rendered(PAGE) == PAGE


def test_every_option_is_on_the_page() -> None:
    """Every spelling of every option of `echelon lint` has a row."""
    for name in (name for option in OPTIONS for name in option.names):
        assert re.search(rf"^\|.*`{re.escape(name)}[ `].*\|", PAGE, re.MULTILINE), name
