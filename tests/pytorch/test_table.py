"""The table of docs/versions.md."""

from pathlib import Path

from tests.pytorch import table

SUITE = '<testsuites><testsuite tests="{}" skipped="{}" failures="{}" errors="{}"/></testsuites>'
HEAD = "# Versions\n\n| PyTorch | Python | hooks |\n| --- | --- | --- | --- | --- | --- |\n"


def test_row_says_what_passed(tmp_path: Path) -> None:
    """What was skipped or has failed is told, and a suite that did not run is no suite that passed."""
    (tmp_path / "hooks.xml").write_text(SUITE.format(66, 0, 0, 0))
    (tmp_path / "scripts.xml").write_text(SUITE.format(100, 3, 1, 1))
    row = table.row(tmp_path, "2.15.0+cu132", "3.11.2", "2026-11-29")
    assert row == "| 2.15.0+cu132 | 3.11.2 | 66 passed | 95 passed, 3 skipped, 2 failed | not run | 2026-11-29 |\n"


def test_newest_version_is_first_and_each_version_stands_once() -> None:
    """A new row replaces that of its version; what follows the table stays."""
    page = HEAD + "| 2.9.0+cpu | old |\n| 2.6.0 | old |\n\nText.\n"
    page = table.put(table.put(page, "| 2.13.0 | new |\n"), "| 2.9.0+cu128 | new |\n")
    assert page == HEAD + "| 2.13.0 | new |\n| 2.9.0+cu128 | new |\n| 2.6.0 | old |\n\nText.\n"
