#!/bin/bash
# train: 4 ranks on 1 node of LUMI-G
# made by: echelon submit --machine lumi … train.py --epochs 3
# costs at most 2 GPU-hours: 4 GPUs × 1 h × 0.5, since 2 GPUs are one MI250X
#
#SBATCH --job-name=train
#SBATCH --account=project_465000000          # whom to bill
#SBATCH --partition=small-g                  # it bills the least among those whose limits allow it (lumi-userguide: docs/runjobs/scheduled-jobs/partitions.md)
#SBATCH --nodes=1                            # the fewest nodes that hold 4 devices: a node has 8
#SBATCH --gpus-per-node=4                    # one MI250X is 2 devices
#SBATCH --ntasks-per-node=1                  # one torchrun a node, which starts the ranks
#SBATCH --cpus-per-task=28                   # 4 × 7: the fair share of a device
#SBATCH --mem=240G                           # the fair share of a device, 60 GiB, times 4
#SBATCH --time=01:00:00                      # as asked; at most 3-00:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

source /home/me/venv/bin/activate

# Ranks meet on the first node, at a port that jobs which share a node do not share.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

srun --nodes=1 --ntasks=1 --ntasks-per-node=1 \
  --cpus-per-task=28 --cpu-bind=none \
  bash -c '
    # threads of one rank
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-7}
    # without it RCCL may meet over nmn0, the slow network for management
    export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-hsn0,hsn1,hsn2,hsn3}"
    # the network reads device memory directly (about twice the bandwidth); ROCm 6.2 does so by itself,
    # and above 256 nodes it is known to crash or hang
    export NCCL_NET_GDR_LEVEL="${NCCL_NET_GDR_LEVEL:-PHB}"
    # data loader workers fork, and libcxi’s registered memory must survive that
    export CXI_FORK_SAFE="${CXI_FORK_SAFE:-1}"
    # the same for huge pages
    export CXI_FORK_SAFE_HP="${CXI_FORK_SAFE_HP:-1}"
    # completion queues stay out of huge pages, which a fork would share
    export FI_CXI_DISABLE_CQ_HUGETLB="${FI_CXI_DISABLE_CQ_HUGETLB:-1}"
    # MIOpen keeps SQLite files: Lustre does not deal well with the locks of many ranks; /tmp is the
    # node’s own memory
    export MIOPEN_USER_DB_PATH="${MIOPEN_USER_DB_PATH:-/tmp/$USER-miopen-$SLURM_JOB_ID-$SLURM_NODEID}"
    # MIOpen’s compiled kernels, beside its database
    export MIOPEN_CUSTOM_CACHE_DIR="${MIOPEN_CUSTOM_CACHE_DIR:-/tmp/$USER-miopen-$SLURM_JOB_ID-$SLURM_NODEID}"
    # Triton compiles into ~/.triton: Lustre does not deal well with the locks of many ranks; /tmp is the
    # node’s own memory
    export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-/tmp/$USER-triton-$SLURM_JOB_ID-$SLURM_NODEID}"
    # torch.compile’s cache is shared by all jobs of a user on a node otherwise
    export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-/tmp/$USER-inductor-$SLURM_JOB_ID-$SLURM_NODEID}"
    # code that comes with a model is written there by every rank at once
    export HF_MODULES_CACHE="${HF_MODULES_CACHE:-/tmp/$USER-hf-modules-$SLURM_JOB_ID-$SLURM_NODEID}"
    # AMD’s AITER, used by vLLM, locks the folder that it compiles into: Lustre does not deal well with
    # the locks of many ranks; /tmp is the node’s own memory
    export AITER_JIT_DIR="${AITER_JIT_DIR:-/tmp/$USER-aiter-$SLURM_JOB_ID-$SLURM_NODEID}"
    # A folder that another user has made is not used: the code in it would run as you.
    for name in MIOPEN_USER_DB_PATH MIOPEN_CUSTOM_CACHE_DIR TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR HF_MODULES_CACHE AITER_JIT_DIR; do
      mkdir -p -m 700 "${!name}"
      [ -O "${!name}" ] && [ ! -L "${!name}" ] || unset "$name"
    done
    exec torchrun --nnodes=1 --nproc-per-node=4 \
      --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"
  ' rank train.py --epochs 3
