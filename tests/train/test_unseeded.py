"""Generators without a seed, and names that are drawn, are the same on all ranks, and others in the next run."""

import re
from pathlib import Path

from tests import warm

SCRIPT = """
import os, random, secrets, sys, time, uuid
import numpy as np, torch
from numpy.random import default_rng
from torch import nn
from torch.utils.data import DataLoader, Dataset
from uuid import uuid4
random.seed()
np.random.seed()
generator = torch.Generator()
drawn = [random.Random().random(), default_rng().random(), np.random.RandomState().rand(), np.random.rand(),
    np.random.Generator(np.random.PCG64()).random(), generator.seed(), torch.rand(1, generator=generator).item(),
    torch.seed(), torch.rand(1).item(), random.random(), uuid4(), uuid.uuid1().hex, secrets.token_hex(40),
    secrets.token_urlsafe(), secrets.randbelow(10**9), secrets.choice(range(10**9)), os.urandom(8).hex()]
print("drawn", *drawn)
sys.path.append(os.path.abspath("elsewhere/site-packages"))
import library
print("secret", library.secret())
assert len(set(map(str, drawn))) == len(drawn)
assert random.Random(3).random() == 0.23796462709189137
assert isinstance(np.random.mtrand._rand, np.random.RandomState) and isinstance(generator, torch.Generator)
assert isinstance(torch.default_generator, torch.Generator) and np.random.RandomState(1).rand() == 0.417022004702574
class Own(np.random.RandomState):
    pass
assert type(Own(1)) is Own and not isinstance(np.random.RandomState(), Own)
class Data(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, place):
        return torch.tensor([float(place), random.Random().random()])
torch.manual_seed(time.time_ns() % 10**6)
loader = DataLoader(Data(), batch_size=8, shuffle=True, num_workers=int(sys.argv[1]))
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for x in loader:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("batch", sorted(x[:, 0].long().tolist()), len(set(x[:, 1].tolist())))
folder = f"run-{uuid4().hex[:8]}"
os.makedirs(folder)
torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
"""


def run(folder: Path, name: str, num_workers: int) -> list[str]:
    """Return what each of two ranks has said."""
    (folder / "train.py").write_text(SCRIPT)
    library = folder / "elsewhere" / "site-packages" / "library.py"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_text("import secrets\ndef secret(): return secrets.token_hex(8)\n")
    words = ["-m", "echelon", "run", "-n", "2", "--run-dir", name, "train.py", str(num_workers)]
    done = warm.run(words, cwd=folder)
    assert done.returncode == 0, done.stderr
    logs = [(folder / name / "logs" / "attempt-0" / f"rank-{rank}.log").read_text() for rank in range(2)]
    return ["\n".join(re.findall("^(?:drawn|batch) .*", log, re.MULTILINE)) for log in logs]


def test_all_ranks_draw_the_same(tmp_path: Path) -> None:
    """Draws without a seed are equal on all ranks and new in each run; each sample has its own numbers.

    A library's secret stays its own, also where the library is installed outside of the environment of this Python.
    """
    first, second = run(tmp_path, "first", 0), run(tmp_path, "second", 1)
    for said in (first, second):
        assert said[0] == said[1]
        assert said[0].count("batch") == 2
        assert said[0].endswith("8")  # as many numbers as samples: none is drawn twice, on whatever rank
    assert first[0].split("\n")[0] != second[0].split("\n")[0]
    assert len(list(tmp_path.glob("run-*/model.pt"))) == 2
    logs = "".join(path.read_text() for path in (tmp_path / "first").rglob("rank-*.log"))
    assert len(set(re.findall("^secret .*", logs, re.MULTILINE))) == 2
