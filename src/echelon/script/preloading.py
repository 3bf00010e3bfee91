"""Packages that must not be imported before the fork, and modules that are worth it, which libraries import later.

Imported on 2026-11-21 with a traced `os.environ`, /proc/self/task and sys.modules (CPU, Python 3.11), and
without a row because nothing was found: accelerate 1.15, transformers 5.23, datasets 5.2, wandb 0.31,
ray 2.60, pyspark 4.3, mlflow 3.17, lightning_utilities 0.15 and jax 0.10.
- transformers asks torch.cuda.is_available(); PYTORCH_NVML_BASED_CUDA_CHECK=1 keeps that harmless, also on
  ROCm (https://github.com/vllm-project/vllm/pull/46741).
- jax starts threads with its first backend, not when imported (https://github.com/jax-ml/jax/pull/20734).
- pyarrow 26, and so pandas, datasets and transformers.Trainer, starts one thread, `jemalloc_bg_thd`; a forked
  child does not have it and could still build arrays.

Modules that libraries import later, during a run: importing them once before the fork saves time.

Measured on 2026-11-21 with torch 2.13.0+cpu, Python 3.11, OMP_NUM_THREADS=1, two x86 cores: `sys.modules`
before and after the call and its wall time, in a process that had done `import torch` and nothing else; then
again after the preload, which left under 0.02 s of each row (of torch.compile, also 0.7 s of compiling).
Only what is worth 0.03 s has a row. Not worth one: init_process_group("gloo") 0.004 s and no module,
DataLoader 0.002 s (with workers 0.04 s and 4 small modules), torch.save and load 0.003 s, schedulers 0 s,
init_device_mesh 0.001 s, backward, autocast, GradScaler, clip_grad_norm_ 0 s.
`tests/script/test_lazy.py` repeats each row where torch is installed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

RANK_ONCE = "reads {} when it is imported and keeps it (rank_zero_only.rank), so every rank would be rank 0"
CONTEXT = "opens the device driver when it is imported, after which a forked rank cannot use its device"
TORCHMETRICS = (  # leaves 0.4 to 0.8 s to the ranks; 1.4 s of the rest are the optional import of transformers
    "torch",
    "torch._dynamo",
    "scipy.signal",
    "matplotlib.pyplot",
    "transformers:AutoModel",
    "transformers:AutoTokenizer",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsafe:
    """A row: this module and its submodules are left to the ranks."""

    prefix: str
    reason: str
    instead: tuple[str, ...] = ()
    """Its own imports that are safe before the fork: "a.b", or "a.b:c" for `from a.b import c`."""
    source: str


ROWS = (
    Unsafe(prefix="mpi4py.MPI", reason="calls MPI_Init_thread when it is imported, and MPI does not survive a fork",
           instead=("mpi4py",), source="https://mpi4py.readthedocs.io/en/4.0.2/mpi4py.html"),
    Unsafe(prefix="horovod", reason="loads the MPI library for the whole process when it is imported",
           source="horovod/common/basics.py: ctypes.CDLL(…, mode=ctypes.RTLD_GLOBAL)"),
    Unsafe(prefix="lightning", reason=RANK_ONCE.format("RANK and LOCAL_RANK"), instead=TORCHMETRICS,
           source="lightning 2.6.6, lightning/fabric/utilities/rank_zero.py line 40, seen"),
    Unsafe(prefix="pytorch_lightning", reason=RANK_ONCE.format("RANK and LOCAL_RANK"), instead=TORCHMETRICS,
           source="pytorch-lightning 2.6.6, lightning_fabric/utilities/rank_zero.py line 40, seen"),
    Unsafe(prefix="lightning_fabric", reason=RANK_ONCE.format("RANK and LOCAL_RANK"), instead=TORCHMETRICS,
           source="pytorch-lightning 2.6.6, lightning_fabric/utilities/rank_zero.py line 40, seen"),
    Unsafe(prefix="torchmetrics", reason=RANK_ONCE.format("LOCAL_RANK"), instead=TORCHMETRICS,
           source="torchmetrics 1.9.0, torchmetrics/utilities/prints.py line 39, seen"),
    Unsafe(
        prefix="deepspeed",
        reason=CONTEXT,
        instead=("torch", "torch._dynamo", "torch._inductor.compile_fx"),  # leaves 1.0 of 2.4 s to the ranks
        source="https://github.com/deepspeedai/DeepSpeed/issues/7918",
    ),
    Unsafe(prefix="tensorflow", reason="hangs in processes that are forked after its import",
           source="https://github.com/google/clusterfuzz/pull/2129"),
    Unsafe(prefix="torch.utils.tensorboard", reason="imports tensorflow where that is installed", instead=("torch",),
           source="torch 2.13.0 with tensorflow 2.21.0, seen in sys.modules"),
    Unsafe(prefix="transformer_engine", reason=CONTEXT, instead=("torch", "torch._dynamo"),
           source="https://github.com/NVIDIA/TransformerEngine/issues/872"),
    Unsafe(prefix="xformers", reason=CONTEXT, instead=("torch",),
           source="https://github.com/facebookresearch/xformers/issues/1030"),
    Unsafe(prefix="bitsandbytes", reason=CONTEXT, instead=("torch",),
           source="https://github.com/huggingface/accelerate/issues/1807"),
    Unsafe(prefix="flashinfer", reason=CONTEXT, instead=("torch",),
           source="https://github.com/flashinfer-ai/flashinfer/issues/4889"),
    Unsafe(prefix="sgl_kernel", reason=CONTEXT, instead=("torch",),
           source="https://github.com/sgl-project/sglang/pull/40201"),
    Unsafe(prefix="cudf", reason=CONTEXT, source="https://github.com/NVIDIA/cudf/issues/13563"),
    Unsafe(prefix="dask_cudf", reason=CONTEXT, source="https://github.com/rapidsai/dask-cuda/issues/867"),
    Unsafe(prefix="cugraph", reason=CONTEXT, source="https://github.com/rapidsai/cugraph/issues/3077"),
    Unsafe(prefix="antigravity", reason="opens a web browser when it is imported",
           source="the standard library's antigravity.py"),
    Unsafe(prefix="this", reason="prints when it is imported, which each rank would then not do",
           source="the standard library's this.py"),
)  # fmt: skip
BY_PREFIX = {row.prefix: row for row in ROWS}


def why_unsafe(name: str) -> Unsafe | None:
    """Return the row that forbids importing this dotted name before the fork, or None.

    >>> why_unsafe("lightning.pytorch").prefix
    'lightning'
    """
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        row = BY_PREFIX.get(".".join(parts[:end]))
        if row is not None:
            return row
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """A row: a script that mentions this name will import these modules later."""

    mention: str
    preload: tuple[str, ...]
    seconds: float
    """The time of a rank's first call without the preload."""
    reason: str


LAZY_ROWS = (
    Later(mention="torch.optim", preload=("torch._dynamo",), seconds=0.9,
          reason="the first optimizer, SGD or AdamW, imports 823 modules, torch._dynamo and sympy among them"),
    Later(mention="torch.nn.parallel.DistributedDataParallel", preload=("torch._dynamo",), seconds=1.0,
          reason="its constructor imports torch._dynamo; forward and backward import nothing"),
    Later(mention="torch.nn.parallel.distributed", preload=("torch._dynamo",), seconds=1.0,
          reason="as torch.nn.parallel.DistributedDataParallel"),
    Later(mention="torch.distributed.fsdp", preload=("torch._dynamo",), seconds=0.56,
          reason="fully_shard imports torch._dynamo, after 0.7 s for torch.distributed.fsdp itself"),
    Later(mention="torch.utils.checkpoint", preload=("torch._dynamo",), seconds=1.0,
          reason="the first checkpoint() imports torch._dynamo"),
    Later(mention="torch.compile", preload=("torch._dynamo", "torch._inductor.compile_fx"), seconds=2.0,
          reason="torch.compile(module) imports 1,404 modules before it compiles anything"),
)  # fmt: skip


def later(mentions: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that a script with these names will import later.

    >>> later({"torch.optim.AdamW"})
    ('torch._dynamo',)
    """
    modules: dict[str, None] = {}
    names = tuple(mentions)
    for row in LAZY_ROWS:
        if any(name == row.mention or name.startswith(row.mention + ".") for name in names):
            modules.update(dict.fromkeys(row.preload))
    return tuple(modules)
