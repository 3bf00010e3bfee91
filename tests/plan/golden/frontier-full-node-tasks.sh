#!/bin/bash
# train: 8 ranks on 1 node of Frontier
# made by: echelon submit --machine frontier … train.py --epochs 3
# costs at most 1 node-hour: 1 node × 1 h × 1 for each whole node and hour
#
#SBATCH --job-name=train
#SBATCH --account=project_465000000          # whom to bill
#SBATCH --partition=batch                    # it bills the least among those whose limits allow it (olcf-user-docs @27459031 (22 July 2026): systems/frontier_user_guide.rst, https://docs.olcf.ornl.gov/systems/frontier_user_guide.html)
#SBATCH --nodes=1                            # the fewest nodes that hold 8 devices: a node has 8
#SBATCH --gpus-per-node=8                    # one MI250X is 2 devices
#SBATCH --ntasks-per-node=8                  # one task a rank
#SBATCH --cpus-per-task=7                    # the job has the whole node: 56 usable cores for 8 ranks, 8 of 64 are reserved
#SBATCH --time=01:00:00                      # as asked; at most 02:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

source /home/me/venv/bin/activate

# Ranks meet on the first node, at a port that jobs which share a node do not share.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

# The masks put each rank on the cores that are nearest to its device.
srun --nodes=1 --ntasks=8 --ntasks-per-node=8 \
  --cpus-per-task=7 --cpu-bind=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000 \
  bash -c '
    # threads of one rank
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-7}
    # MIOpen keeps SQLite files, whose locks a shared file system does not deal well with
    export MIOPEN_USER_DB_PATH="${MIOPEN_USER_DB_PATH:-/tmp/$USER-miopen-$SLURM_JOB_ID-$SLURM_NODEID}"
    # MIOpen’s compiled kernels, beside its database
    export MIOPEN_CUSTOM_CACHE_DIR="${MIOPEN_CUSTOM_CACHE_DIR:-/tmp/$USER-miopen-$SLURM_JOB_ID-$SLURM_NODEID}"
    # Triton compiles into ~/.triton, on the shared file system, and ranks wait for each other’s locks
    # there
    export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-/tmp/$USER-triton-$SLURM_JOB_ID-$SLURM_NODEID}"
    # torch.compile’s cache is shared by all jobs of a user on a node otherwise
    export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-/tmp/$USER-inductor-$SLURM_JOB_ID-$SLURM_NODEID}"
    # code that comes with a model is written there by every rank at once
    export HF_MODULES_CACHE="${HF_MODULES_CACHE:-/tmp/$USER-hf-modules-$SLURM_JOB_ID-$SLURM_NODEID}"
    # A folder that another user has made is not used: the code in it would run as you.
    for name in MIOPEN_USER_DB_PATH MIOPEN_CUSTOM_CACHE_DIR TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR HF_MODULES_CACHE; do
      mkdir -p -m 700 "${!name}"
      [ -O "${!name}" ] && [ ! -L "${!name}" ] || unset "$name"
    done
    # Slurm’s numbers under the names that PyTorch reads
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    export LOCAL_WORLD_SIZE=8 NODE_RANK=$SLURM_NODEID GROUP_RANK=$SLURM_NODEID
    exec python "$@"
  ' rank train.py --epochs 3
