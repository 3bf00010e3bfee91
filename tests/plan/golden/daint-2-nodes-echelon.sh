#!/bin/bash
# train: 8 ranks on 2 nodes of Alps (Daint)
# made by: echelon submit --machine daint … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --partition=normal                   # it uses the fewest devices among those whose limits allow it (cscs-docs @80abed1 (20 August 2026): docs/clusters/daint.md, https://docs.cscs.ch/clusters/daint/)
#SBATCH --nodes=2                            # the fewest nodes that hold 8 devices: a node has 4
#SBATCH --gpus-per-node=4                    # GH200
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=288                  # 4 × 72: the job has the whole node: 288 usable cores for 4 ranks
#SBATCH --time=01:00:00                      # as asked; at most 1-00:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=daint
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
