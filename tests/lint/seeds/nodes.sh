#!/bin/bash
#SBATCH --job-name=resnet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=32
#SBATCH --exclusive
#SBATCH --time=08:00:00

# Written by hand, used by the whole group.
source "$HOME/venvs/torch/bin/activate"

head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((29500 + SLURM_JOB_ID % 1000))
export OMP_NUM_THREADS=8
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

echo "Started at $(date) on $SLURM_JOB_NODELIST"

srun torchrun \
    --nnodes="$SLURM_NNODES" \
    --nproc_per_node=4 \
    --rdzv_id="$SLURM_JOB_ID" \
    --rdzv_backend=c10d \
    --rdzv_endpoint="$head_node:$port" \
    resnet.py --data /data/imagenet --epochs 90

echo "Ended at $(date)"
