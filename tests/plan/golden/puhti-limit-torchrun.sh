#!/bin/bash
# train: 80 ranks on 20 nodes of Puhti (GPU nodes)
# made by: echelon submit --machine puhti … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --account=project_465000000          # whom to bill
#SBATCH --partition=gpu                      # it uses the fewest devices among those whose limits allow it (csc-user-guide: docs/computing/running/batch-job-partitions.md)
#SBATCH --nodes=20                           # the fewest nodes that hold 80 devices: a node has 4
#SBATCH --gres=gpu:v100:4                    # V100
#SBATCH --ntasks-per-node=1                  # one torchrun a node, which starts the ranks
#SBATCH --cpus-per-task=40                   # 4 × 10: the fair share of a device
#SBATCH --mem=372G                           # the fair share of a device, 93 GiB, times 4
#SBATCH --time=01:00:00                      # as asked; at most 3-00:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

source /home/me/venv/bin/activate

# Ranks meet on the first node, at a port that jobs which share a node do not share.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

srun --nodes=20 --ntasks=20 --ntasks-per-node=1 \
  --cpus-per-task=40 --cpu-bind=none \
  bash -c '
    # threads of one rank
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-10}
    exec torchrun --nnodes=20 --nproc-per-node=4 \
      --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" "$@"
  ' rank train.py --epochs 3
