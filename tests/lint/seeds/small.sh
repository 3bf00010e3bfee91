#!/usr/bin/env bash
#SBATCH -J finetune
#SBATCH -A project_462000353
#SBATCH -p small-g
#SBATCH -N 1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH -c 28
#SBATCH --mem=240G
#SBATCH -t 12:00:00

module use /appl/local/laifs/modules
module load lumi-aif-singularity-bindings

export HF_HOME=/scratch/$SLURM_JOB_ACCOUNT/hf
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 50000))
GPUS=4

srun -c 28 singularity run "$SIF" \
  torchrun --standalone --nproc-per-node=$GPUS --master-port=$MASTER_PORT \
  finetune.py --model LumiOpen/Poro-34B --bf16 --num-workers=5
