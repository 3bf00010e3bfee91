"""Draw watch.png, the page of `echelon watch --web` in a browser, with a run that goes on: `make pictures`.

The run has 16 ranks on the four nodes of the tests' private Slurm; one of them is slow, and the others wait for it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from docs.pictures.chromium import PROGRAM, Browser
from tests.cluster import Cluster

FOLDER = Path(__file__).parent
SECONDS = 400
STEPS = 60
"""The steps of the run after which the picture is taken."""
TRAIN = """import os
import time

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(65536, 32)
data = TensorDataset(x, x[:, :8].pow(2).sum(1, keepdim=True))


def read(rows):
    time.sleep(0.1)
    return torch.utils.data.default_collate(rows)


loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data), collate_fn=read)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    time.sleep(0.75 if os.environ["RANK"] == "9" else 0.5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def draw() -> None:
    """Start the cluster and the run, look at its page, and end both."""
    if not PROGRAM:
        sys.exit("watch_page.py: Chromium is missing: tools/install-slurm")
    with tempfile.TemporaryDirectory() as name, Cluster() as cluster:
        (Path(name) / "train.py").write_text(TRAIN)
        echelon = [sys.executable, "-m", "echelon"]
        environ = {**cluster.environ, "ECHELON_CHECK": "off", "OMP_NUM_THREADS": "1"}
        line = ["salloc", "--quiet", "-N4", *echelon, "run", "-n", "4", "--show", "none", "train.py"]
        with subprocess.Popen(line, cwd=name, env=environ, start_new_session=True) as run:
            try:
                _take(Path(name), echelon, run)
            finally:
                os.killpg(run.pid, signal.SIGTERM)


def _take(folder: Path, echelon: list[str], run: subprocess.Popen[bytes]) -> None:
    while not (runs := list(folder.glob("echelon-runs/*/events.jsonl"))):
        if run.poll() is not None:
            sys.exit("watch_page.py: the run has ended before it began")
        time.sleep(0.2)
    line = [*echelon, "watch", "--web", str(runs[0].parent.relative_to(folder))]
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            (FOLDER / "watch.png").write_bytes(_picture(server))
        finally:
            server.terminate()


def _picture(server: subprocess.Popen[str]) -> bytes:
    said = ""
    while not (found := re.search(r"TOKEN is in +(.*)\n", said)):
        said += server.stdout.readline() if server.stdout else ""
    token = Path(found[1]).read_text()
    port = re.search(r"http://127\.0\.0\.1:(\d+)/", said)
    with Browser(width=1180, height=1000, scale=1.5) as browser:
        browser.prefer("light")
        browser.open(f"http://127.0.0.1:{port[1] if port else ''}/?token={token}")
        browser.until("typeof last === 'object' && last !== null")
        slow = "last.nodes.flatMap((node) => node.ranks).filter((rank) => rank.excess)"
        browser.until(f"last.steps >= {STEPS} && {slow}.length === 1", SECONDS)
        browser.value("document.querySelector('.tile').click()")
        browser.value("document.activeElement.blur(); scrollTo(0, 0)")
        return browser.picture()


if __name__ == "__main__":
    draw()
