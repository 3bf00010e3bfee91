#!/bin/bash
# train: 8 ranks on 2 nodes of Mahti (GPU nodes)
# made by: echelon submit --machine mahti … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --account=project_465000000          # whom to bill
#SBATCH --partition=gpumedium                # it uses the fewest devices among those whose limits allow it (csc-user-guide: docs/computing/running/batch-job-partitions.md)
#SBATCH --nodes=2                            # 2 whole nodes of 4 devices
#SBATCH --gres=gpu:a100:4                    # A100
#SBATCH --ntasks-per-node=4                  # one task a rank
#SBATCH --cpus-per-task=32                   # the fair share of a device
#SBATCH --time=01:00:00                      # as asked; at most 1-12:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

source /home/me/venv/bin/activate

# Ranks meet on the first node, at a port that jobs which share a node do not share.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

srun --nodes=2 --ntasks=8 --ntasks-per-node=4 \
  --cpus-per-task=32 \
  bash -c '
    # threads of one rank
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-32}
    # Slurm’s numbers under the names that PyTorch reads
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    export LOCAL_WORLD_SIZE=4 NODE_RANK=$SLURM_NODEID GROUP_RANK=$SLURM_NODEID
    exec python "$@"
  ' rank train.py --epochs 3
