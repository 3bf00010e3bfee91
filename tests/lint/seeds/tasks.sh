#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --array=0-7
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=02:00:00

RATES=(0.1 0.03 0.01 0.003 0.001 0.0003 0.0001 0.00003)
rate=${RATES[$SLURM_ARRAY_TASK_ID]}
export MASTER_ADDR=$(hostname)
export MASTER_PORT=$((12000 + SLURM_JOB_ID % 20000))

srun --cpus-per-task=16 --cpu-bind=map_cpu:0,16,32,48 bash -c '
  export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
  python sweep.py --rate '"$rate"' --workers 8
'
