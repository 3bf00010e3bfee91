#!/bin/bash
# train: 8 ranks on 2 nodes of Perlmutter (GPU nodes)
# made by: echelon submit --machine perlmutter … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --qos=regular                        # NERSC: https://docs.nersc.gov/jobs/policy/, stored copy
#SBATCH --constraint=gpu
#SBATCH --nodes=2                            # the fewest nodes that hold 8 devices: a node has 4
#SBATCH --gpus-per-node=4                    # A100
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=128                  # 4 × 16 × 2: the job has the whole node: 64 usable cores for 4 ranks, 2 threads each
#SBATCH --time=01:00:00                      # as asked; the limit is not published
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=perlmutter
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
