#!/bin/bash
#SBATCH --account=project_2001659
#SBATCH --partition=gpu
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=40
#SBATCH --gres=gpu:v100:4
#SBATCH --mem=320G
#SBATCH --time=24:00:00

module load pytorch/2.6
srun --cpus-per-task=40 accelerate launch --config_file accelerate.yaml --num_processes=4 tune.py \
  --per_device_train_batch_size 8 --fp16
