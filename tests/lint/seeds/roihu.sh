#!/bin/bash
#SBATCH --job-name=speech
#SBATCH --account=project_2001659
#SBATCH --partition=gpumedium
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=288
#SBATCH --gres=gpu:gh200:4
#SBATCH --time=06:00:00

set -e
work=/scratch/project_2001659/$USER
image=$work/pytorch_2.7.sif

srun --cpus-per-task=288 apptainer exec --nv -B "$work" "$image" \
  torchrun --standalone --nproc-per-node=4 speech.py --out "$work/runs/$SLURM_JOB_ID"
