#!/bin/bash
# made by: echelon submit --machine hipergator … train.py --epochs 3
#SBATCH --job-name=train
#SBATCH --partition=hpg-turin
#SBATCH --qos=normal
#SBATCH --nodes=1
#SBATCH --gres=gpu:l4:1
#SBATCH --cpus-per-task=4
#SBATCH --mem=32G
#SBATCH --time=01:00:00
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out

source /home/me/venv/bin/activate
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun python train.py --epochs 3
