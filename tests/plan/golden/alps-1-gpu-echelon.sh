#!/bin/bash
# train: 1 rank on 1 node of Alps (Clariden)
# made by: echelon submit --machine alps … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --partition=normal                   # it uses the fewest devices among those whose limits allow it (cscs-docs @80abed1 (20 August 2026): docs/clusters/clariden.md, https://docs.cscs.ch/clusters/clariden/)
#SBATCH --nodes=1                            # the fewest nodes that hold 1 device: a node has 4
#SBATCH --gpus-per-node=4                    # this partition gives whole nodes: devices that stay idle and are billed: 3
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=288                  # the job has the whole node: 288 usable cores for 1 rank
#SBATCH --time=01:00:00                      # as asked; at most 12:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=alps
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
