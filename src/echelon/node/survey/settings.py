"""Read the environment variables that affect a run."""

from typing import Mapping

from .nouns import Settings

PREFIXES = (
    "NCCL_", "RCCL_", "MIOPEN_", "HIP_", "HSA_", "ROCR_", "ROC_", "CUDA_", "GPU_", "AMD_", "OMP_", "MKL_", "KMP_",
    "GOMP_", "OPENBLAS_", "TORCH", "PYTORCH_", "FI_", "OFI_", "CXI_", "MPICH_", "UCX_", "TRITON_", "HF_",
    "TRANSFORMERS_", "XDG_", "TMPDIR", "PYTHON", "LD_", "GLOO_", "TP_", "MASTER_", "AITER_", "NUMBA_", "JAX_", "XLA_",
    "ACCELERATE_", "DS_", "NVIDIA_", "SINGULARITY", "APPTAINER", "HOME", "USER",
    # misspelled prefixes, too: a check compares such names with the known ones
    "NCLL_", "NCC_", "NCCL", "MIOPN_", "MOIPEN_", "MIPEN_", "OMP", "HIP", "ROCR", "CUDA", "RCC",
)  # fmt: skip
SECRETS = ("TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "COOKIE")
MOST_BYTES = 4096


def read(environ: Mapping[str, str]) -> Settings:
    """Return the variables that affect a run; variables that may hold a secret are never read."""
    return Settings(
        {
            name: value[:MOST_BYTES]
            for name, value in sorted(environ.items())
            if name.startswith(PREFIXES) and not any(word in name.upper() for word in SECRETS)
        }
    )
