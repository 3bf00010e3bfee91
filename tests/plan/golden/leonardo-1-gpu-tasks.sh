#!/bin/bash
# made by: echelon submit --machine leonardo … train.py --epochs 3
# costs at most 8 core-hours: 1 GPU × 1 h × 8
#SBATCH --job-name=train
#SBATCH --account=project_465000000
#SBATCH --partition=boost_usr_prod
#SBATCH --nodes=1
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out

source /home/me/venv/bin/activate
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun python train.py --epochs 3
