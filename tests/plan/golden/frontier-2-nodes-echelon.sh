#!/bin/bash
# train: 16 ranks on 2 nodes of Frontier
# made by: echelon submit --machine frontier … train.py --epochs 3
# costs at most 2 node-hours: 2 nodes × 1 h × 1 for each whole node and hour
#
#SBATCH --job-name=train
#SBATCH --account=project_465000000          # whom to bill
#SBATCH --partition=batch                    # it bills the least among those whose limits allow it (olcf-user-docs @27459031 (22 July 2026): systems/frontier_user_guide.rst, https://docs.olcf.ornl.gov/systems/frontier_user_guide.html)
#SBATCH --nodes=2                            # the fewest nodes that hold 16 devices: a node has 8
#SBATCH --gpus-per-node=8                    # one MI250X is 2 devices
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=56                   # 8 × 7: the job has the whole node: 56 usable cores for 8 ranks, 8 of 64 are reserved
#SBATCH --time=01:00:00                      # as asked; at most 02:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=frontier
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
