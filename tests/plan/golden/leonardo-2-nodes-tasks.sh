#!/bin/bash
# train: 8 ranks on 2 nodes of Leonardo Booster
# made by: echelon submit --machine leonardo … train.py --epochs 3
# costs at most 32 core-hours: 2 nodes × 4 GPUs × 0.5 h × 8
#
#SBATCH --job-name=train
#SBATCH --account=project_465000000          # whom to bill
#SBATCH --partition=boost_usr_prod           # as asked (stubbiali/hpc-scripts @017d9d9b: hpc-scripts-leonardo/src/hpc_scripts/leonardo/utils.py, https://github.com/stubbiali/hpc-scripts, a user's; a second user's repository agrees)
#SBATCH --qos=boost_qos_dbg                  # stubbiali/hpc-scripts @017d9d9b: hpc-scripts-leonardo/src/hpc_scripts/leonardo/utils.py, https://github.com/stubbiali/hpc-scripts, a user's; a second user's repository agrees
#SBATCH --nodes=2                            # the fewest nodes that hold 8 devices: a node has 4
#SBATCH --gres=gpu:4                         # A100
#SBATCH --ntasks-per-node=4                  # one task a rank
#SBATCH --cpus-per-task=8                    # the fair share of a device
#SBATCH --time=00:30:00                      # as asked; at most 00:30:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

source /home/me/venv/bin/activate

# Ranks meet on the first node, at a port that jobs which share a node do not share.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

srun --nodes=2 --ntasks=8 --ntasks-per-node=4 \
  --cpus-per-task=8 \
  bash -c '
    # threads of one rank
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-8}
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
    # Slurm’s numbers under the names that PyTorch reads
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    export LOCAL_WORLD_SIZE=4 NODE_RANK=$SLURM_NODEID GROUP_RANK=$SLURM_NODEID
    exec python "$@"
  ' rank train.py --epochs 3
