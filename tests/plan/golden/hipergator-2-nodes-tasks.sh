#!/bin/bash
# train: 16 ranks on 2 nodes of HiPerGator
# made by: echelon submit --machine hipergator … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --partition=hpg-ai                   # as asked (Fundamentals of accelerated training with several GPUs on HiPerGator-AI, slides of UFIT Research Computing (2022 to 2023))
#SBATCH --qos=normal
#SBATCH --nodes=2                            # 2 whole nodes of 8 devices
#SBATCH --gres=gpu:a100:8                    # A100
#SBATCH --ntasks-per-node=8                  # one task a rank
#SBATCH --cpus-per-task=16                   # the fair share of a device
#SBATCH --mem=928G                           # the fair share of a device, 116 GiB, times 8
#SBATCH --time=01:00:00                      # as asked; the limit is not published
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

source /home/me/venv/bin/activate

# Ranks meet on the first node, at a port that jobs which share a node do not share.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

srun --nodes=2 --ntasks=16 --ntasks-per-node=8 \
  --cpus-per-task=16 \
  bash -c '
    # threads of one rank
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-16}
    # leaves out four adapters of the DGX A100, as NVIDIA recommends there
    export NCCL_IB_HCA="${NCCL_IB_HCA:-^mlx5_4,mlx5_5,mlx5_10,mlx5_11}"
    # the interface by which nodes meet
    export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-bridge-1145}"
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
    # Slurm’s numbers under the names that PyTorch reads
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    export LOCAL_WORLD_SIZE=8 NODE_RANK=$SLURM_NODEID GROUP_RANK=$SLURM_NODEID
    exec python "$@"
  ' rank train.py --epochs 3
