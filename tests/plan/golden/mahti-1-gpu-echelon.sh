#!/bin/bash
# train: 1 rank on 1 node of Mahti (GPU nodes)
# made by: echelon submit --machine mahti … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --account=project_465000000          # whom to bill
#SBATCH --partition=gpusmall                 # it uses the fewest devices among those whose limits allow it (csc-user-guide: docs/computing/running/batch-job-partitions.md)
#SBATCH --nodes=1                            # the fewest nodes that hold 1 device: a node has 4
#SBATCH --gres=gpu:a100:1                    # A100
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=32                   # the fair share of a device
#SBATCH --time=01:00:00                      # as asked; at most 1-12:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=mahti
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
