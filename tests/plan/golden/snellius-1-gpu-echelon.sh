#!/bin/bash
# train: 1 rank on 1 node of Snellius
# made by: echelon submit --machine snellius … train.py --epochs 3
# costs at most 192 SBU: 1 GPU × 1 h × 192
#
#SBATCH --job-name=train
#SBATCH --partition=gpu_h100                 # it bills the least among those whose limits allow it (SURF: https://servicedesk.surf.nl/wiki/spaces/WIKI/pages/30660209/Snellius+partitions+and+accounting, stored copy)
#SBATCH --nodes=1                            # the fewest nodes that hold 1 device: a node has 4
#SBATCH --gpus-per-node=1                    # H100
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=16                   # the fair share of a device
#SBATCH --mem=180G                           # the fair share of a device, 180 GiB, times 1
#SBATCH --time=01:00:00                      # as asked; at most 5-00:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=snellius
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
