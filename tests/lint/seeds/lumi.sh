#!/bin/bash -l
#SBATCH --job-name=pretrain-1b
#SBATCH --account=project_462000353
#SBATCH --partition=standard-g
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=7
#SBATCH --mem=480G
#SBATCH --time=1-12:00:00
#SBATCH --output=logs/%x-%j.out
#SBATCH --error=logs/%x-%j.err
#SBATCH --signal=B:USR1@300

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
module purge
module load LUMI/24.03 partition/G

CONTAINER=/appl/local/containers/sif-images/lumi-pytorch-rocm-6.2.4-python-3.12-pytorch-v2.6.0.sif
export SINGULARITY_BIND=/var/spool/slurmd,/opt/cray,/usr/lib64/libcxi.so.1,/pfs,/scratch,/flash

# The ranks meet on the first node, at a port of this job's own.
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export WORLD_SIZE=$SLURM_NTASKS

# network
export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3
export NCCL_NET_GDR_LEVEL=PHB
export CXI_FORK_SAFE=1
export CXI_FORK_SAFE_HP=1
export FI_CXI_DISABLE_CQ_HUGETLB=1

# caches, on each node's own disk
export MIOPEN_USER_DB_PATH="/tmp/${USER}-miopen-${SLURM_JOB_ID}"
export MIOPEN_CUSTOM_CACHE_DIR="${MIOPEN_USER_DB_PATH}"
export OMP_NUM_THREADS=7

ARGS=(
  --config configs/1b.yaml
  --seed 1234
  --checkpoints "/scratch/$SLURM_JOB_ACCOUNT/checkpoints"
)

MASKS=mask_cpu:0xfe000000000000,0xfe00000000000000,0xfe0000,0xfe000000,0xfe,0xfe00,0xfe00000000,0xfe0000000000

report() {
  # called once, at the end
  local code=$1
  if [ "$code" -ne 0 ]; then
    echo "ended with $code on $(hostname)" >&2
  fi
  rm -rf "${MIOPEN_USER_DB_PATH:?}/cache"
}
trap 'report $?' EXIT

mkdir -p results
for attempt in 1 2 3; do
  if srun --cpus-per-task=7 --cpu-bind="$MASKS" --kill-on-bad-exit=1 \
    singularity exec "$CONTAINER" bash -c '
      export RANK=$SLURM_PROCID
      export LOCAL_RANK=$SLURM_LOCALID
      $WITH_CONDA
      exec python -u train.py "$@"
    ' train "${ARGS[@]}"; then
    break
  fi
  echo "attempt $attempt has failed"
done
