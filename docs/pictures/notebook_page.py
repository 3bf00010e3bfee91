"""Draw notebook.png: a JupyterLab in which a cell has trained on two ranks. `make pictures`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from docs.pictures.chromium import PROGRAM, Browser

FOLDER = Path(__file__).parent
CELLS = (
    "%load_ext echelon",
    """%%echelon -n 2 --fetch losses,model
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=32)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for batch, target in loader:
    loss = (model(batch) - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("trained", len(losses), "steps")""",
    "print(losses[0], '→', losses[-1])\nmodel",
)
_READY = "document.querySelector('.jp-Notebook') !== null && window.jupyterapp !== undefined"
_RUN = "window.jupyterapp.commands.execute('notebook:run-all-cells'); true"


@contextmanager
def lab(folder: Path, cells: Sequence[str], browser: Browser) -> Iterator[None]:
    """Open a notebook with these cells in a JupyterLab of this Python, run all of them, and wait for the last one."""
    notebook = {
        "cells": [_cell(number, text) for number, text in enumerate(cells)],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (folder / "training.ipynb").write_text(json.dumps(notebook))
    sources = str(FOLDER.parents[1] / "src")
    environ = {**os.environ, "PYTHONPATH": sources, "ECHELON_POOL": str(folder / "pool"), "HOME": str(folder)}
    words = (
        "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--ServerApp.port=0", "--allow-root",
        "--LabApp.expose_app_in_browser=True", "--ServerApp.terminals_enabled=False",
    )  # fmt: skip
    with (
        (folder / "lab.log").open("w") as log,
        subprocess.Popen([sys.executable, *words], cwd=folder, env=environ, stdout=log, stderr=log) as server,
    ):
        try:
            address, token = _address(folder / "lab.log")
            browser.open(f"{address}lab/tree/training.ipynb?token={token}")
            browser.until(_READY)
            browser.until("document.body.innerText.includes('| Idle')")
            browser.value(_RUN)
            numbers = "[...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].map(one => one.innerText)"
            browser.until(f"{numbers}.filter(text => /\\[\\d+\\]/.test(text)).length == {len(cells)}")
            yield
        finally:
            subprocess.run([sys.executable, "-m", "echelon", "pool", "stop"], env=environ, check=False)
            server.terminate()


def _cell(number: int, text: str) -> dict[str, object]:
    cell = {"cell_type": "code", "id": f"cell-{number}", "source": text}
    return {**cell, "metadata": {}, "outputs": [], "execution_count": None}


def _address(log: Path) -> tuple[str, str]:
    """Return the address of the server and its token, as soon as it has told them."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        told = re.search(r"(http://127\.0\.0\.1:\d+/)lab\S*\?token=(\w+)", log.read_text())
        if told:
            return told[1], told[2]
        time.sleep(0.1)
    raise TimeoutError(log.read_text())


def draw() -> None:
    """Take the picture."""
    if not PROGRAM:
        sys.exit("notebook_page.py: Chromium is missing: tools/install-slurm")
    with (
        tempfile.TemporaryDirectory() as folder,
        Browser(width=1180, height=900, scale=1.5) as browser,
        lab(Path(folder), CELLS, browser),
    ):
        browser.value("window.jupyterapp.commands.execute('application:toggle-left-area'); true")
        browser.value("document.querySelectorAll('.Toastify').forEach(one => one.remove()); true")
        time.sleep(1)
        (FOLDER / "notebook.png").write_bytes(browser.picture(whole=False))


if __name__ == "__main__":
    draw()
