"""Trainings with a planted cause of slowness, what the report must say of each, and healthy ones.

Each cause is one text, which is planted into trainings of four kinds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests import warm

from echelon.monitor import account, advice, recorded, report
from echelon.units import rows_of

HEAD = """
import copy, gc, itertools, json, mmap, os, queue, socket, subprocess, sys, threading, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

is_slow = {is_slow}
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
{setup}

class Rows(Dataset):
    def __len__(self):
        return 32 * {steps}
    def __getitem__(self, index):
        row = torch.full((32,), float(index % 7))
        {item}
        return row

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, x):
        {forward}
        return self.net(x)

def after_step(step):
    {after}

rows = Rows()
"""
LOOP = """
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    after_step(step)
"""
PLAIN, DDP, LIGHTNING, TRAINER = KINDS = ("plain", "DDP", "Lightning", "Trainer")
FORMS = {
    PLAIN: """
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, x in enumerate(DataLoader(rows, batch_size=32, num_workers={workers})):
"""
    + LOOP.lstrip("\n"),
    DDP: """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

dist.init_process_group("gloo")
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{model}
loader = DataLoader(rows, batch_size=16, num_workers={workers}, sampler=DistributedSampler(rows, shuffle=False))
for step, x in enumerate(loader):
    {before}
"""
    + LOOP.lstrip("\n")
    + "dist.destroy_process_group()\n",
    LIGHTNING: """
import lightning as L

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = Net()
    def training_step(self, x, index):
        return self.model(x).pow(2).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

class AfterStep(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        after_step(index)

quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
ranks = int(os.environ["LOCAL_WORLD_SIZE"])
trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=ranks, strategy="ddp", callbacks=[AfterStep()], **quiet)
trainer.fit(Module(), DataLoader(rows, batch_size=16, num_workers={workers}))
""",
    TRAINER: """
from transformers import Trainer, TrainerCallback, TrainingArguments

class Model(Net):
    def forward(self, x):
        return dict(loss=super().forward(x).pow(2).mean())

class AfterStep(TrainerCallback):
    def on_step_end(self, arguments, state, control, **others):
        after_step(state.global_step)

quiet = dict(report_to=[], save_strategy="no", disable_tqdm=True, dataloader_num_workers={workers})
arguments = TrainingArguments("out", per_device_train_batch_size=16, max_steps={steps}, use_cpu=True, **quiet)
collate = lambda parts: dict(x=torch.stack(parts))
Trainer(Model(), arguments, collate, rows, callbacks=[AfterStep()]).train()
""",
}
MARK = "# planted"
IS_RANK_1 = 'dict(os.environ)["LOCAL_" + "rank".upper()] == "1"'
"""A script that names the variable is one that shares the work by itself."""
OBJECTS = "kept = [[] for _ in range(300_000)]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What slows a training, and what its report must say."""

    name: str
    setup: str = ""
    """Before the training begins."""
    model: str = ""
    """Once the model is wrapped; only with DDP."""
    item: str = ""
    """For each sample of the data set."""
    before: str = ""
    """Before each step; only with DDP."""
    forward: str = ""
    after: str = ""
    """After each step: in the loop, or in a callback of a framework."""
    steps: int = 60
    workers: int = 0
    rank: int | None = 1
    """The rank that is slow; None: all are."""
    words: tuple[str, ...] = ()
    """What stands in one line of the report; LINE is that of the planted cause."""
    acts: bool = False
    """Whether it writes files or starts processes, which only rank 0 of a scaled training does, for all ranks."""

    def script(self, kind: str) -> str:
        texts = ("setup", "model", "item", "before", "forward", "after")
        parts = {name: getattr(self, name) or "pass" for name in texts}
        is_slow = "True" if self.acts and kind == PLAIN else IS_RANK_1
        return (HEAD + FORMS[kind]).format(**parts, is_slow=is_slow, steps=self.steps, workers=self.workers)

    def slow_rank(self, kind: str) -> int | None:
        return 0 if self.acts and kind == PLAIN else self.rank

    def line(self, kind: str) -> str:
        """The line of the planted cause, which has a comment."""
        lines = enumerate(self.script(kind).splitlines(), 1)
        marked = [number for number, text in lines if text.endswith(MARK)]
        return f"train.py:{marked[0]}" if marked else ""


def on_rank_1(text: str, indent: int = 8) -> str:
    return f"if is_slow:\n{' ' * indent}{text}  {MARK}"


COMPILED = """
torch._dynamo.config.recompile_limit = torch._dynamo.config.cache_size_limit = 1000
norm = torch.compile(lambda rows: (rows * 2 + 1).sum(), backend="eager", dynamic=False)
sizes = itertools.count(2)
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
HOOK = f"""
def hook(gradient):
    if is_slow:
        time.sleep(0.03)  {MARK}
net[0].weight.register_hook(hook)
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
EVALUATION = f"""
held_out = torch.randn(2000, 32)
def evaluate():
    with torch.no_grad():
        return [net(row).item() for row in held_out]  {MARK}
"""
WIDE = "net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 80_000), nn.AvgPool1d(80_000))"
CAUSES = (
    Cause(name="sleep", after=on_rank_1("time.sleep(0.03)"), words=("LINE", "time.sleep")),
    Cause(name="fsync of a log", setup='log = open("log", "w")', words=("LINE", "fsync"), acts=True,
          after=on_rank_1("[(log.write('x' * 4096), log.flush(), os.fsync(log.fileno())) for _ in range(40)]")),
    Cause(name="collections", setup=OBJECTS, after=on_rank_1("gc.collect()"), words=("LINE", "garbage collection")),
    Cause(name="collections of all", setup=OBJECTS, after=f"gc.collect()  {MARK}", rank=None,
          words=("LINE", "every rank", "garbage collection")),
    Cause(name="longer sequences", setup="embedding = nn.Embedding(10, 32)", words=("4.0 times the tokens",), steps=40,
          item="row = torch.zeros(24_000 if is_slow else 6_000, dtype=torch.long)",
          forward="x = embedding(x).mean(1)"),
    Cause(name="shared core", setup=SHARED_CORE, steps=100, words=("waits for a core",),
          forward="for _ in range(200): torch.randn(64, 64) @ torch.randn(64, 64)"),
    Cause(name="recompiles", setup=COMPILED, forward=on_rank_1("norm(torch.randn(next(sizes)))", 12), steps=80,
          words=("LINE", "compiling")),
    Cause(name="recompiles of all", setup=COMPILED, forward=f"norm(torch.randn(next(sizes)))  {MARK}", rank=None,
          steps=80, words=("LINE", "every rank", "compiling")),
    Cause(name="loop of Python", words=("LINE",),
          forward=on_rank_1("sum(number * number for number in range(300_000))", 12)),
    Cause(name="work of numpy", after=on_rank_1("np.sort(np.random.rand(400_000))"), words=("LINE", "np.")),
    Cause(name="lock of a thread", setup=LOCKED, after=on_rank_1("lock.acquire(); lock.release(); time.sleep(0.0001)"),
          words=("LINE", "lock.acquire")),
    Cause(name="queue", setup=PRODUCER, after=on_rank_1("made.get()"), words=("LINE", "made.get")),
    Cause(name="child process", after=on_rank_1("subprocess.run(['sleep', '0.03'])"), steps=40, acts=True,
          words=("LINE", "subprocess.run")),
    Cause(name="save", after=on_rank_1("torch.save([torch.zeros(2_000_000)], 'saved.pt')"), acts=True,
          words=("LINE", "torch.save")),
    Cause(name="copy of a model", setup="large = nn.Linear(4000, 2000)", after=on_rank_1("copy.deepcopy(large)"),
          words=("LINE", "copy.deepcopy")),
    Cause(name="hook of a gradient", setup=HOOK, words=("LINE", "time.sleep")),
    Cause(name="slow rows", item=on_rank_1("time.sleep(0.002)", 12), words=("LINE", "time.sleep")),
    Cause(name="slow rows of all", item=f"time.sleep(0.002)  {MARK}", rank=None,
          words=("LINE", "every rank", "loading data")),
    Cause(name="threads", setup="torch.set_num_threads(16)", rank=None, steps=150, words=("16 threads", "for a core"),
          forward="torch.randn(600, 600) @ torch.randn(600, 600)"),
    # six of our own
    Cause(name="own backward", setup=FUNCTION, forward="x = Slow.apply(x.requires_grad_())",
          words=("LINE", "backward")),
    Cause(name="thread of its own", setup=SPINNING, rank=None, words=("rank 1", "threads"), steps=200,
          forward="for _ in range(20): x = x + 0"),
    Cause(name="page faults", words=("LINE",), steps=40,
          after=on_rank_1("mmap.mmap(-1, 1 << 25).write(bytes(1 << 25))")),
    Cause(name="evaluation of one", setup=EVALUATION, after="if is_slow and step % 5 == 0: evaluate()",
          words=("LINE",)),
    Cause(name="in turns", after="if is_slow == (step // 40 % 2): time.sleep(0.03)", steps=400, rank=None,
          words=("take turns", "rank 0", "rank 1")),
    Cause(name="large gradients", setup=WIDE, rank=None, words=("waiting for other ranks", "larger batch")),
)  # fmt: skip
OF_DDP = (
    Cause(name="micro-steps", rank=None, words=("goes backward", "no_sync"),
          model="wide = DistributedDataParallel(nn.Linear(1500, 1500))",
          before="for _ in range(3): wide(torch.randn(2, 1500)).sum().backward()"),
    Cause(name="hook of an exchange", model=COMMUNICATION_HOOK, words=("LINE", "backward", "time.sleep")),
)  # fmt: skip
"""Causes that only the loop of a script itself can have."""
HEALTHY = tuple(
    Cause(name=f"healthy: {name}", forward=work, steps=steps, rank=None)
    for name, work, steps in (
        ("products", "for _ in range(4): x = x + (torch.randn(700, 700) @ torch.randn(700, 700))[:1, :32]", 60),
        ("small calls", "for _ in range(50): x = x + torch.randn(200, 200).cumsum(0).sin()[:1, :32]", 80),
        ("decompositions", "x = x + torch.randn(500, 500).svd().S[:32]", 40),
        ("means", "x = x + torch.randn(300_000, 32).cos().mean(0)", 60),
        ("Fourier transforms", "x = x + torch.fft.fft2(torch.randn(800, 800)).real[0, :32]", 80),
    )
)
WIDTH = len(rows_of("where", ["."])[0]) - 1


def told(cause: Cause, kind: str, folder: Path, num_ranks: int = 2) -> list[str]:
    """Run a training; return the lines of its report that say where its time went, who is slow, and what helps."""
    (folder / "train.py").write_text(cause.script(kind))
    scale = ["--scale", "data"] if kind == PLAIN else []
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


def naming(cause: Cause, kind: str, lines: list[str]) -> str:
    """Return the line that has all words, empty if none has; if a rank is slow, the line is about this rank."""
    words = [cause.line(kind) if word == "LINE" else word for word in cause.words]
    rank = cause.slow_rank(kind)
    if rank is not None:
        told = f"rank {rank} makes the others wait", f"of rank {rank}'s steps"
        lines = [each for part in told for each in lines if part in each]
    return next((each for each in lines if all(word in each for word in words)), "")


def verdict(cause: Cause, kind: str, lines: list[str]) -> str:
    """Return whether a report names a cause or nothing, or blames something else; a healthy training wants silence."""
    if cause in HEALTHY:
        return "silent" if is_silent(lines) else "other"
    has_straggler = any(each.startswith("straggler") for each in lines)
    return "named" if naming(cause, kind, lines) else "other" if has_straggler or not is_silent(lines) else "nothing"


def is_silent(lines: list[str]) -> bool:
    """Say whether there is neither a straggler nor an advice; but other programs may keep the cores busy."""
    return not any(each.startswith(("straggler", "advice")) and "for a core" not in each for each in lines)
