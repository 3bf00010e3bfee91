#!/usr/bin/bash
#
#SBATCH -J sweep_a            # shown by squeue
# SBATCH -J sweep_b
#SBATCH -p a100
# SBATCH -p a100,h100
#SBATCH --gres=gpu:4
#SBATCH -N 2                  # both nodes are ours
#SBATCH --exclusive
#SBATCH --ntasks-per-node=1   # torch.distributed.run starts the others
#SBATCH -c 32
# SBATCH --mem=200G
#SBATCH --mem=400G
#SBATCH -t 4-00:00
#SBATCH --array=0-3%1
#SBATCH -o logs/%x_%A_%a.out

: "${DATA:?where is the data?}"
unset SLURM_NTASKS SLURM_NTASKS_PER_NODE; set -o pipefail
eval "$(conda shell.bash hook)"
conda activate "$HOME/envs/torch"
ml load gcc

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=6000
export SRUN_CPUS_PER_TASK=32
GPUS_PER_NODE=4

MODEL_ARGS=" \
    --layers 24 \
    --width 2048 \
    "
export LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES \
    --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT"
export CMD="$PWD/pretrain.py $MODEL_ARGS --data $DATA --seed ${SLURM_ARRAY_TASK_ID}"

echo "start: $(date)"; echo $CMD
# to see what would run: add echo
clear; srun --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee -a logs/main.txt

# what is left is done beside each other
srun --ntasks=1 --nodes=1 --gres=gpu:1 --exact python evaluate.py --split valid &
srun --ntasks=1 --nodes=1 --gres=gpu:1 --exact python evaluate.py --split test &
wait
conda deactivate
echo "end: $(date)"
