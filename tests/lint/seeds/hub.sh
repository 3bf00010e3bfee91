#!/bin/bash
#SBATCH --job-name=instruct
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=1-00:00:00

export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

srun bash -c 'accelerate launch --num_machines=2 --num_processes=16 --machine_rank=$SLURM_NODEID \
  --main_process_ip=$MASTER_ADDR --main_process_port=29400 instruct.py --deepspeed ds.json'
