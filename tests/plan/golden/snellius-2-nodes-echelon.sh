#!/bin/bash
# train: 8 ranks on 2 nodes of Snellius
# made by: echelon submit --machine snellius … train.py --epochs 3
# costs at most 1024 SBU: 2 nodes × 4 GPUs × 1 h × 128
#
#SBATCH --job-name=train
#SBATCH --partition=gpu_a100                 # it bills the least among those whose limits allow it (SURF: https://servicedesk.surf.nl/wiki/spaces/WIKI/pages/30660209/Snellius+partitions+and+accounting, stored copy)
#SBATCH --nodes=2                            # the fewest nodes that hold 8 devices: a node has 4
#SBATCH --gpus-per-node=4                    # A100
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=72                   # 4 × 18: the fair share of a device
#SBATCH --mem=480G                           # the fair share of a device, 120 GiB, times 4
#SBATCH --time=01:00:00                      # as asked; at most 5-00:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=snellius
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
