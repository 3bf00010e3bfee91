#!/bin/bash
# train: 8 ranks on 2 nodes of Alps (Clariden)
# made by: echelon submit --machine alps … train.py --epochs 3
#
#SBATCH --job-name=train
#SBATCH --partition=normal                   # it uses the fewest devices among those whose limits allow it (cscs-docs @80abed1 (20 August 2026): docs/clusters/clariden.md, https://docs.cscs.ch/clusters/clariden/)
#SBATCH --nodes=2                            # the fewest nodes that hold 8 devices: a node has 4
#SBATCH --gpus-per-node=4                    # GH200
#SBATCH --ntasks-per-node=4                  # one task a rank
#SBATCH --cpus-per-task=72                   # the job has the whole node: 288 usable cores for 4 ranks
#SBATCH --time=01:00:00                      # as asked; at most 12:00:00 here
#SBATCH --chdir=/scratch/project/experiment
#SBATCH --output=/scratch/project/experiment/echelon-runs/20260701-120000-train-0000/slurm.out
#SBATCH --open-mode=append                   # a requeued job appends to its log

source /home/me/venv/bin/activate

# Ranks meet on the first node, at a port that jobs which share a node do not share.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT

srun --nodes=2 --ntasks=8 --ntasks-per-node=4 \
  --cpus-per-task=72 \
  bash -c '
    # threads of one rank
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-72}
    # the network reads device memory directly, if both are on one NUMA node
    export NCCL_NET_GDR_LEVEL="${NCCL_NET_GDR_LEVEL:-PHB}"
    # the protocol LL128, a default from NCCL 2.27 on, is slower on this network
    export NCCL_PROTO="${NCCL_PROTO:-^LL128}"
    # the centre’s setting for the best performance over many applications
    export FI_CXI_DEFAULT_CQ_SIZE="${FI_CXI_DEFAULT_CQ_SIZE:-131072}"
    # the centre’s setting for the best performance over many applications
    export FI_CXI_DEFAULT_TX_SIZE="${FI_CXI_DEFAULT_TX_SIZE:-16384}"
    # the centre’s setting for the best performance over many applications
    export FI_CXI_DISABLE_HOST_REGISTER="${FI_CXI_DISABLE_HOST_REGISTER:-1}"
    # the centre’s setting for the best performance over many applications
    export FI_CXI_RX_MATCH_MODE="${FI_CXI_RX_MATCH_MODE:-software}"
    # the centre’s setting for the best performance over many applications
    export FI_MR_CACHE_MONITOR="${FI_MR_CACHE_MONITOR:-userfaultfd}"
    # with 1, MPI fails in a program that is not linked with its library for devices
    export MPICH_GPU_SUPPORT_ENABLED="${MPICH_GPU_SUPPORT_ENABLED:-0}"
    # Triton compiles into ~/.triton, on the shared file system, and ranks wait for each other’s locks
    # there
    export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-/dev/shm/$USER-triton-$SLURM_JOB_ID-$SLURM_NODEID}"
    # torch.compile’s cache is shared by all jobs of a user on a node otherwise
    export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-/dev/shm/$USER-inductor-$SLURM_JOB_ID-$SLURM_NODEID}"
    # code that comes with a model is written there by every rank at once
    export HF_MODULES_CACHE="${HF_MODULES_CACHE:-/dev/shm/$USER-hf-modules-$SLURM_JOB_ID-$SLURM_NODEID}"
    # A folder that another user has made is not used: the code in it would run as you.
    for name in TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR HF_MODULES_CACHE; do
      mkdir -p -m 700 "${!name}"
      [ -O "${!name}" ] && [ ! -L "${!name}" ] || unset "$name"
    done
    # Slurm’s numbers under the names that PyTorch reads
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    export LOCAL_WORLD_SIZE=4 NODE_RANK=$SLURM_NODEID GROUP_RANK=$SLURM_NODEID
    exec python "$@"
  ' rank train.py --epochs 3
