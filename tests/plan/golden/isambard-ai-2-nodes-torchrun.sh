#!/bin/bash
# train: 8 ranks on 2 nodes of Isambard-AI
# made by: echelon submit --machine isambard-ai … train.py --epochs 3
# costs at most 2 node-hours: 2 nodes × 4 GPUs × 1 h × 0.25
#
#SBATCH --job-name=train
#SBATCH --partition=workq                    # it bills the least among those whose limits allow it (BriCS: https://docs.isambard.ac.uk/user-documentation/information/job-scheduling/, stored copy)
#SBATCH --nodes=2                            # the fewest nodes that hold 8 devices: a node has 4
#SBATCH --gpus-per-node=4                    # GH200
#SBATCH --ntasks-per-node=1                  # one torchrun a node, which starts the ranks
#SBATCH --cpus-per-task=288                  # 4 × 72: the fair share of a device
#SBATCH --time=01:00:00                      # as asked; at most 1-00:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

source /home/me/venv/bin/activate

# Ranks meet on the first node, at a port that jobs which share a node do not share.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

srun --nodes=2 --ntasks=2 --ntasks-per-node=1 \
  --cpus-per-task=288 --cpu-bind=none \
  bash -c '
    # threads of one rank
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-72}
    # the setting of the job scripts that were found
    export NCCL_CROSS_NIC="${NCCL_CROSS_NIC:-1}"
    # Triton compiles into ~/.triton, on the shared file system, and ranks wait for each other’s locks
    # there
    export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-/tmp/$USER-triton-$SLURM_JOB_ID-$SLURM_NODEID}"
    # torch.compile’s cache is shared by all jobs of a user on a node otherwise
    export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-/tmp/$USER-inductor-$SLURM_JOB_ID-$SLURM_NODEID}"
    # code that comes with a model is written there by every rank at once
    export HF_MODULES_CACHE="${HF_MODULES_CACHE:-/tmp/$USER-hf-modules-$SLURM_JOB_ID-$SLURM_NODEID}"
    # A folder that another user has made is not used: the code in it would run as you.
    for name in TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR HF_MODULES_CACHE; do
      mkdir -p -m 700 "${!name}"
      [ -O "${!name}" ] && [ ! -L "${!name}" ] || unset "$name"
    done
    exec torchrun --nnodes=2 --nproc-per-node=4 \
      --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"
  ' rank train.py --epochs 3
