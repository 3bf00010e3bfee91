#!/bin/bash
#SBATCH --job-name=segment
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=12
#SBATCH --time=10:00:00

export SRUN_CPUS_PER_TASK=12
srun python segment.py --name "segment-$SLURM_JOB_ID"
