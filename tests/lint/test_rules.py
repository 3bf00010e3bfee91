"""Every rule finds its bad example and is silent on its good one."""

import pytest
from tests.lint.linting import codes, example

from echelon.lint import table
from echelon.lint.pages import all_pages

PAGES = all_pages()


@pytest.mark.parametrize("code", table.CODES)
def test_bad_example_is_found(code: str) -> None:
    """The bad example breaks the rule of its page, at a line that is there, and the finding says what to do."""
    page = PAGES[code]
    found = [finding for finding in example(page, page.bad).findings if finding.code == code]
    assert found
    for finding in found:
        assert finding.text.strip(), finding
        assert finding.message and finding.source
        assert 1 <= finding.column <= len(finding.text) + 1, finding


@pytest.mark.parametrize("code", table.CODES)
def test_good_example_is_silent(code: str) -> None:
    """The good example breaks no rule at all."""
    page = PAGES[code]
    assert [(each.code, each.line, each.message) for each in example(page, page.good).findings] == []


@pytest.mark.parametrize("code", table.CODES)
def test_bad_example_breaks_little_else(code: str) -> None:
    """What else is said of a bad example is expected, so that no rule is loud."""
    page = PAGES[code]
    closed = {"ECH103"} if page.machine in ("puhti", "mahti") else set()
    assert codes(example(page, page.bad)) - {code} - closed == set()
