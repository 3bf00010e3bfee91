"""What docs/lint.md says of every rule, and the score: `python -m tests.lint` writes it."""

import re
from pathlib import Path

from tests.lint.seeding import seeds
from tests.lint.test_effects import ROWS
from tests.lint.test_fix import FIXABLE

from echelon.lint.pages import all_pages

PATH = Path(__file__).parents[2] / "docs/lint.md"
HEADER = "| rule | severity | what it finds | `--fix` | shown on Slurm |\n|---|---|---|---|---|\n"
ROW = re.compile(r"^\| (ECH\d+) \|.*$", re.MULTILINE)
SCORE = re.compile(r"^Of \d+ mistakes that .*?\.$", re.MULTILINE | re.DOTALL)


def row(code: str) -> str:
    """Return the row of one rule."""
    page = all_pages()[code]
    title = page.title.replace("|", "\\|")
    marks = ("yes" if code in FIXABLE else "", "yes" if code in ROWS else "")
    return f"| {code} | {page.severity} | {title} | {' | '.join(marks)} |".replace("|  |", "| |").replace("|  |", "| |")


def score() -> str:
    """Return how many of the seeded mistakes are found."""
    all_seeds = seeds()
    found = sum(1 for seed in all_seeds if seed.is_found())
    which = f"Of {len(all_seeds)} mistakes that tests put into whole scripts, one at a time,"
    before = "before their rules were mended, 138 of the first 152 were"
    return f"{which} {found} are found at their line,\nwith a repair; {before}."


def rendered(text: str) -> str:
    """Return the page with its tables and its score as they are now."""
    text = re.sub(r"^\| rule \|.*\n\|[-|]+\n", lambda _: HEADER, text, flags=re.MULTILINE)
    text = ROW.sub(lambda found: row(found[1]), text)
    return SCORE.sub(lambda _: score(), text)
