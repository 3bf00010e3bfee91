"""Draw the page of `echelon report --html`, of one rank and of two with waits for data, in two widths and colours.

`make pictures` writes report.png, report-dark.png, report-phone.png and report-phone-dark.png.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from docs.pictures.chromium import PROGRAM, Browser
from PIL import Image

FOLDER = Path(__file__).parent
WIDE, PHONE = 1280, 390
TRAIN = """import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __len__(self):
        return 6400

    def __getitem__(self, index):
        time.sleep(0.0005)  # reading a file
        return torch.full((10,), index / 6400), torch.tensor(float(index >= 3200))


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for epoch in range(3):
    for x, y in DataLoader(Photos(), batch_size=64, shuffle=True):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def draw() -> None:
    """Train on one rank and on two, and take a picture of the page of both."""
    if not PROGRAM:
        sys.exit("report_page.py: Chromium is missing: tools/install-slurm")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(TRAIN)
        for number, name in ((1, "one-rank"), (2, "two-ranks")):
            _echelon(folder, "run", "-n", str(number), "--run-dir", name, "train.py")
        _echelon(folder, "report", "--html", "report.html", "one-rank", "two-ranks")
        with Browser(width=WIDE, height=900, scale=1.5) as browser:
            for scheme in ("light", "dark"):
                browser.prefer(scheme)
                for width in (WIDE, PHONE):
                    browser.resize(width, 900, 1.5, is_phone=width == PHONE)
                    browser.open((Path(folder) / "report.html").as_uri())
                    browser.until("document.readyState === 'complete'")
                    name = "report" + "-phone" * (width == PHONE) + "-dark" * (scheme == "dark")
                    picture = Image.open(io.BytesIO(browser.picture())).convert("RGB")
                    picture.quantize(64, dither=Image.Dither.NONE).save(FOLDER / f"{name}.png", optimize=True)


def _echelon(folder: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "echelon", *words], cwd=folder, check=True)


if __name__ == "__main__":
    draw()
