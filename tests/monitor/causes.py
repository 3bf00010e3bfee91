"""Trainings with a planted cause of slowness, what the report must say of each, and healthy ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests import warm

from echelon.monitor import account, advice, recorded, report
from echelon.units import rows_of

DDP = """
import copy, gc, json, os, queue, random, socket, subprocess, sys, threading, time
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

dist.init_process_group("gloo")
is_slow = dist.get_rank() == 1
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{setup}
for step in range({steps}):
    x = torch.randn(16, 32)
    {before}
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
dist.destroy_process_group()
"""
PLAIN = """
import gc, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 32 * {steps}
    def __getitem__(self, index):
        {item}
        return torch.full((32,), float(index % 7))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{setup}
for x in DataLoader(Rows(), batch_size=32):
    {before}
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""
LIGHTNING = """
import gc, json, os, time
import lightning as L
import torch
from torch.utils.data import DataLoader

is_slow = os.environ["LOCAL_RANK"] == "1"
{setup}

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    def training_step(self, x, index):
        loss = self.model(x).pow(2).mean()
        {after}
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
ranks = int(os.environ["LOCAL_WORLD_SIZE"])
rows = DataLoader(torch.randn(32 * {steps}, 32), batch_size=16)
L.Trainer(max_epochs=1, accelerator="cpu", devices=ranks, strategy="ddp", **quiet).fit(Net(), rows)
"""
TRAINER = """
import gc, json, os, time
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

is_slow = os.environ["LOCAL_RANK"] == "1"
{setup}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    def forward(self, x):
        loss = self.model(x).pow(2).mean()
        {after}
        return dict(loss=loss)

rows = [dict(x=row) for row in torch.randn(32 * {steps}, 32)]
quiet = dict(report_to=[], save_strategy="no", disable_tqdm=True)
arguments = TrainingArguments("out", per_device_train_batch_size=16, max_steps={steps}, use_cpu=True, **quiet)
Trainer(Net(), arguments, train_dataset=rows).train()
"""
MARK = "# planted"
OBJECTS = "kept = [[] for _ in range(300_000)]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A training, and what its report must say."""

    name: str
    form: str = DDP
    setup: str = ""
    item: str = ""
    before: str = ""
    after: str = ""
    steps: int = 60
    rank: int | None = 1
    """The rank that is slow; None: all are."""
    words: tuple[str, ...] = ()
    """What stands in one line of the report; LINE is that of the planted cause."""

    @property
    def script(self) -> str:
        parts = {name: getattr(self, name) or "pass" for name in ("setup", "item", "before", "after", "steps")}
        return self.form.format(**parts)

    @property
    def line(self) -> str:
        """The line of the planted cause, which has a comment."""
        marked = [number for number, text in enumerate(self.script.splitlines(), 1) if text.endswith(MARK)]
        return f"train.py:{marked[0]}" if marked else ""


def on_rank_1(text: str) -> str:
    return f"if is_slow:\n        {text}  {MARK}"


IN_LATTER_HALF = f"if index % 32 >= 16:\n            time.sleep(0.002)  {MARK}"
"""Rows of which the second of two ranks gets all."""
COMPILED = """
torch._dynamo.config.recompile_limit = torch._dynamo.config.cache_size_limit = 1000
norm = torch.compile(lambda rows: (rows * 2 + 1).sum(), backend="eager", dynamic=False)
"""
SHARED_CORE = """
if is_slow:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    burner = subprocess.Popen([sys.executable, "-c", "import os\\nwhile os.getppid() != 1: pass"])
    import atexit; atexit.register(burner.kill)
else:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
"""
LOCKED = """
lock = threading.Lock()
def hold():
    while True:
        with lock:
            time.sleep(0.02)
if is_slow:
    threading.Thread(target=hold, daemon=True).start()
"""
PRODUCER = """
made = queue.Queue(maxsize=1)
def produce():
    while True:
        time.sleep(0.03)
        made.put(1)
if is_slow:
    threading.Thread(target=produce, daemon=True).start()
"""
SOCKETS = """
reader, writer = socket.socketpair()
def send():
    while True:
        time.sleep(0.03)
        writer.send(b"x")
if is_slow:
    threading.Thread(target=send, daemon=True).start()
"""
LONGER = """
rows = DataLoader(torch.zeros(16 * 200, 24_000 if is_slow else 6_000, dtype=torch.long), batch_size=16)
embedding = torch.nn.Embedding(10, 32)
batches = iter(rows)
"""
HOOK = f"""
def hook(gradient):
    if is_slow:
        time.sleep(0.03)  {MARK}
model.module[0].weight.register_hook(hook)
"""
FUNCTION = f"""
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows):
        return rows * 1
    @staticmethod
    def backward(ctx, gradient):
        if is_slow:
            sum(number * number for number in range(300_000))  {MARK}
        return gradient
"""
COMMUNICATION_HOOK = f"""
def exchange(state, bucket):
    if is_slow:
        time.sleep(0.03)  {MARK}
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / 2)
model.register_comm_hook(None, exchange)
"""
SPINNING = """
def spin():
    number = 0
    while True:
        number += 1
if is_slow:
    threading.Thread(target=spin, daemon=True).start()
"""
SLOW_WORKERS = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16 * 200
    def __getitem__(self, index):
        if is_slow:
            time.sleep(0.002)
        return torch.full((32,), float(index % 7))
batches = iter(DataLoader(Rows(), batch_size=16, num_workers=1))
"""
LOGS = 'log = open("log-" + str(dist.get_rank()), "w")'
CAUSES = (
    Cause(name="sleep", after=on_rank_1("time.sleep(0.03)"), words=("LINE", "time.sleep", "sleeping")),
    Cause(name="fsync of a log", setup=LOGS, words=("LINE", "fsync"),
          after=on_rank_1("[(log.write('x' * 4096), log.flush(), os.fsync(log.fileno())) for _ in range(40)]")),
    Cause(name="collections of all", setup=OBJECTS, after=f"gc.collect()  {MARK}", rank=None,
          words=("LINE", "every rank", "garbage collection")),
    Cause(name="collections of one", setup=OBJECTS, after=on_rank_1("gc.collect()"),
          words=("LINE", "garbage collection")),
    Cause(name="longer sequences, loader", setup=LONGER, words=("4.0 times the tokens",), steps=40,
          before=f"ids = next(batches); x = x + embedding(ids).mean((0, 1))  {MARK}"),
    Cause(name="longer sequences, no loader", words=("LINE",),
          before=f"x = torch.randn(16 * (4000 if is_slow else 400), 32).cumsum(0).sin()[:16]  {MARK}"),
    Cause(name="shared core", setup=SHARED_CORE, steps=150, words=("waits for a core",),
          before="for _ in range(60): torch.randn(64, 64) @ torch.randn(64, 64)"),
    Cause(name="recompiles", setup=COMPILED, before=f"norm(torch.randn(step + 2))  {MARK}", rank=None, steps=80,
          words=("LINE", "every rank", "compiling")),
    Cause(name="recompiles of one", setup=COMPILED, before=on_rank_1("norm(torch.randn(step + 2))"), steps=80,
          words=("LINE", "compiling")),
    Cause(name="loop of Python", after=on_rank_1("sum(number * number for number in range(300_000))"),
          words=("LINE",)),
    Cause(name="work of numpy", after=on_rank_1("np.sort(np.random.rand(400_000))"), words=("LINE", "np.")),
    Cause(name="lock of a thread", setup=LOCKED, after=on_rank_1("lock.acquire(); lock.release(); time.sleep(0.0001)"),
          words=("LINE", "lock.acquire", "sleeping")),
    Cause(name="threads", setup="torch.set_num_threads(16)", rank=None, steps=40, words=("16 threads", "for a core"),
          before="torch.randn(600, 600) @ torch.randn(600, 600)"),
    Cause(name="queue", setup=PRODUCER, after=on_rank_1("made.get()"), words=("LINE", "made.get", "sleeping")),
    Cause(name="socket", setup=SOCKETS, after=on_rank_1("reader.recv(1)"), words=("LINE", "reader.recv", "sleeping")),
    Cause(name="child process", after=on_rank_1("subprocess.run(['sleep', '0.03'])"), steps=40,
          words=("LINE", "subprocess.run", "sleeping")),
    Cause(name="save", after=on_rank_1("torch.save([torch.zeros(2_000_000)], 'saved.pt')"), words=("saves", "LINE")),
    Cause(name="copy of a model", setup="large = torch.nn.Linear(2000, 2000)",
          after=on_rank_1("copy.deepcopy(large)"), words=("LINE", "copy.deepcopy")),
    Cause(name="JSON", setup="facts = [{str(number): number} for number in range(30_000)]",
          after=on_rank_1("json.dumps(facts)"), words=("LINE", "json.dumps")),
    Cause(name="hook of a gradient", setup=HOOK, words=("LINE", "backward", "time.sleep", "sleeping")),
    Cause(name="own backward", setup=FUNCTION, before="x = Slow.apply(x.requires_grad_())", words=("LINE", "backward")),
    Cause(name="hook of an exchange", setup=COMMUNICATION_HOOK, words=("LINE", "backward", "time.sleep")),
    Cause(name="thread of its own", setup=SPINNING, rank=None, words=("rank 1", "threads"), steps=200,
          before="for _ in range(20): x = x + 0"),
    Cause(name="workers of a loader", setup=SLOW_WORKERS, words=("LINE", "DataLoader"),
          before=f"x = next(batches)  {MARK}"),
    Cause(name="page faults", setup="import mmap", words=("LINE",), steps=40,
          after=on_rank_1("memory = mmap.mmap(-1, 1 << 25); memory[::4096] = bytes(1 << 13)")),
    Cause(name="micro-steps", rank=None, words=("goes backward", "no_sync"),
          setup="wide = DistributedDataParallel(torch.nn.Linear(1500, 1500))",
          before="for _ in range(3): wide(torch.randn(2, 1500)).sum().backward()"),
    Cause(name="sleep of all, scaled", form=PLAIN, after=f"time.sleep(0.03)  {MARK}", rank=None,
          words=("LINE", "every rank", "time.sleep", "sleeping")),
    Cause(name="slow rows, scaled", form=PLAIN, item=f"time.sleep(0.002)  {MARK}", rank=None,
          words=("LINE", "every rank", "loading data")),
    Cause(name="slow rows of one, scaled", form=PLAIN, item=IN_LATTER_HALF, words=("DataLoader", "LINE", "sleeping")),
    Cause(name="collections, scaled", form=PLAIN, setup=OBJECTS, after=f"gc.collect()  {MARK}", rank=None,
          words=("LINE", "every rank", "garbage collection")),
    Cause(name="loop of Python, scaled", form=PLAIN, rank=None, words=("LINE", "every rank"),
          after=f"sum(number * number for number in range(300_000))  {MARK}"),
)  # fmt: skip
HEALTHY = tuple(
    Cause(name=f"healthy {number}", form=form, before=work, steps=steps, rank=None)
    for number, (form, work, steps) in enumerate(
        (form, work, steps)
        for form in (DDP, PLAIN)
        for work, steps in (
            ("for _ in range(4): x = x + (torch.randn(700, 700) @ torch.randn(700, 700))[:1, :32]", 60),
            ("for _ in range(50): x = x + torch.randn(200, 200).cumsum(0).sin()[:1, :32]", 80),
            ("x = x + torch.randn(500, 500).svd().S[:32]", 40),
            ("x = x + torch.randn(300_000, 32).cos().mean(0)", 60),
            ("x = x + torch.fft.fft2(torch.randn(800, 800)).real[0, :32]", 80),
        )
    )
)


OF_FRAMEWORKS = tuple(
    Cause(name=f"{name}, {framework}", form=form, setup=OBJECTS, after=f"{work}  {MARK}", rank=rank, words=words)
    for framework, form in (("Lightning", LIGHTNING), ("Trainer", TRAINER))
    for name, work, rank, words in (
        ("sleep", "if is_slow: time.sleep(0.03)", 1, ("LINE", "time.sleep", "sleeping")),
        ("sleep of all", "time.sleep(0.03)", None, ("LINE", "every rank", "sleeping")),
        ("collections of one", "if is_slow: gc.collect()", 1, ("LINE", "gc.collect")),
        ("loop of Python", "if is_slow: sum(n * n for n in range(300_000))", 1, ("LINE",)),
        ("JSON", "if is_slow: json.dumps(list(range(300_000)))", 1, ("LINE", "json.dumps")),
    )
)
"""The same in the two frameworks, where their environment is the one that runs."""


WIDTH = len(rows_of("where", ["."])[0]) - 1


def told(cause: Cause, folder: Path, num_ranks: int = 2) -> list[str]:
    """Run a training; return the lines of its report that say where its time went, who is slow, and what helps."""
    (folder / "train.py").write_text(cause.script)
    scale = ["--scale", "data"] if cause.form is PLAIN else []
    line = ["-m", "echelon", "run", "--run-dir", "run", "-n", str(num_ranks), *scale, "train.py"]
    done = warm.run(line, cwd=folder, environ={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"{cause.name}: {done.stderr}")
    run = recorded.read(str(folder / "run"))
    found = account.of_run(run)
    lines = report.text("run", "ended well", run, found, advice.advise(run, found)).splitlines()
    words = ("where", "straggler", "devices", "advice")
    return [each for each in _with_words(lines) if each.startswith(words)]


def _with_words(lines: list[str]) -> list[str]:
    """Return the lines of a report, each with its first word, which stands once."""
    word, whole = "", []
    for each in lines:
        word = each[:WIDTH] if each[:WIDTH].strip() else word
        whole.append(word + each[WIDTH:])
    return whole


def naming(cause: Cause, lines: list[str]) -> str:
    """Return the line that has all words, empty if none has; if a rank is slow, it is that of this straggler."""
    words = [cause.line if word == "LINE" else word for word in cause.words]
    if cause.rank is not None:
        lines = [each for each in lines if f"rank {cause.rank} makes the others wait" in each]
    return next((each for each in lines if all(word in each for word in words)), "")


def is_silent(lines: list[str]) -> bool:
    """Say whether there is neither a straggler nor an advice; but other programs may keep the cores busy."""
    return not any(each.startswith(("straggler", "advice")) and "for a core" not in each for each in lines)
