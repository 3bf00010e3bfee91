#!/bin/bash
# train: 4 ranks on 1 node of HiPerGator
# made by: echelon submit --machine hipergator … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --partition=hpg-ai                   # as asked (Fundamentals of accelerated training with several GPUs on HiPerGator-AI, slides of UFIT Research Computing (2022 to 2023))
#SBATCH --qos=normal
#SBATCH --nodes=1                            # the fewest nodes that hold 4 devices: a node has 8
#SBATCH --gres=gpu:a100:4                    # A100
#SBATCH --ntasks-per-node=1                  # one torchrun a node, which starts the ranks
#SBATCH --cpus-per-task=64                   # 4 × 16: the fair share of a device
#SBATCH --mem=464G                           # the fair share of a device, 116 GiB, times 4
#SBATCH --time=01:00:00                      # as asked; the limit is not published
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

source /home/me/venv/bin/activate

# Ranks meet on the first node, at a port that jobs which share a node do not share.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

srun --nodes=1 --ntasks=1 --ntasks-per-node=1 \
  --cpus-per-task=64 --cpu-bind=none \
  bash -c '
    # threads of one rank
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-16}
    # Triton compiles into ~/.triton, on the shared file system, and ranks wait for each other’s locks
    # there
    export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$SLURM_TMPDIR/$USER-triton-$SLURM_JOB_ID-$SLURM_NODEID}"
    # torch.compile’s cache is shared by all jobs of a user on a node otherwise
    export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$SLURM_TMPDIR/$USER-inductor-$SLURM_JOB_ID-$SLURM_NODEID}"
    # code that comes with a model is written there by every rank at once
    export HF_MODULES_CACHE="${HF_MODULES_CACHE:-$SLURM_TMPDIR/$USER-hf-modules-$SLURM_JOB_ID-$SLURM_NODEID}"
    # A folder that another user has made is not used: the code in it would run as you.
    for name in TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR HF_MODULES_CACHE; do
      mkdir -p -m 700 "${!name}"
      [ -O "${!name}" ] && [ ! -L "${!name}" ] || unset "$name"
    done
    exec torchrun --nnodes=1 --nproc-per-node=4 \
      --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"
  ' rank train.py --epochs 3
