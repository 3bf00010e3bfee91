#!/bin/bash
# train: 8 ranks on 1 node of HiPerGator
# made by: echelon submit --machine hipergator … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --partition=hpg-ai                   # as asked (Fundamentals of accelerated training with several GPUs on HiPerGator-AI, slides of UFIT Research Computing (2022 to 2023))
#SBATCH --qos=normal
#SBATCH --nodes=1                            # the fewest nodes that hold 8 devices: a node has 8
#SBATCH --gres=gpu:a100:8                    # A100
#SBATCH --ntasks-per-node=1                  # one agent a node, which starts the ranks
#SBATCH --cpus-per-task=128                  # 8 × 16: the fair share of a device
#SBATCH --mem=928G                           # the fair share of a device, 116 GiB, times 8
#SBATCH --time=01:00:00                      # as asked; the limit is not published
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

export ECHELON_MACHINE=hipergator
run_directory=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000${SLURM_RESTART_COUNT:+-$SLURM_RESTART_COUNT}
exec /home/me/venv/bin/python -m echelon run --run-dir "$run_directory" train.py --epochs 3
