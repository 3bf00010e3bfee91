#!/bin/bash
# made by: echelon submit --machine isambard-ai … train.py --epochs 3
# costs at most 0.25 node-hours: 1 GPU × 1 h × 0.25
#SBATCH --job-name=train
#SBATCH --partition=workq
#SBATCH --nodes=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=72
#SBATCH --time=01:00:00
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out

source /home/me/venv/bin/activate
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun python train.py --epochs 3
