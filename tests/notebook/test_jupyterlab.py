"""A real JupyterLab in a real Chromium: a cell trains on two ranks, and the next cell has its variables."""

from pathlib import Path

import pytest
from docs.pictures.chromium import PROGRAM, Browser
from docs.pictures.notebook_page import CELLS, lab


@pytest.mark.tier("all")
def test_cells_in_jupyterlab(tmp_path: Path) -> None:
    """The page shows what the ranks print, and the loss that was fetched goes down."""
    pytest.importorskip("jupyterlab", reason="pip install --group notebook")
    if not PROGRAM:
        pytest.skip("there is no Chromium here: apt install chromium")
    with Browser() as browser, lab(tmp_path, CELLS, browser):
        text = str(browser.value("document.body.innerText"))
        assert "scaled over 2 ranks" in text
        assert "trained 16 steps" in text
        (printed,) = [line for line in text.splitlines() if " → " in line]
        first, last = printed.split(" → ")
        assert float(last) < 0.1 < float(first)
        assert "'bias': tensor(" in text
